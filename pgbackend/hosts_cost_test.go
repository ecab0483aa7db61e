package pgbackend

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/shadow"
)

// What groups over several hosts cost in the process: wake-ups, sockets and threads.

// Whatever a rank tells ranks of other hosts wakes the pump of their link: nothing crosses because a pump looks by
// itself.
func TestPumpsAreWoken(t *testing.T) {
	real := shadow.LongestSleep
	shadow.LongestSleep = time.Hour
	t.Cleanup(func() { shadow.LongestSleep = real })
	const hosts = "xxyz" // which no network has been made for, whose pumps may look
	isFreed := func(w *world) {
		t.Helper()
		for _, g := range w.groups {
			require.Eventually(t, func() bool {
				g.process.sweep()
				return g.life.now() == freed
			}, opTimeout, time.Millisecond)
		}
	}
	w := newHostsWorld(t, hosts)
	for kind := range coll.KindCount {
		if kind.Collective() {
			w.each(func(g *Group) error { return g.try(transfer{kind, 1, 1, equalLength(100_000)}, coll.Op{}) })
		}
	}
	w.each(func(g *Group) error { return g.Destroy() })
	isFreed(w)
	w = newHostsWorld(t, hosts)
	w.groups[2].Abort("the test says so")
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.Aborted, "the test says so")
	w.destroy()
	isFreed(w)
	cutLast(t, newHostsWorld(t, hosts), 1000)
}

// The links of a process serve all of its groups: 16 ranks on 4 hosts have 2 sockets for each of the other processes
// and one that listens, however many groups they make.
func TestSocketsOfManyGroups(t *testing.T) {
	eachAProcess(t)
	const hosts = "0000111122223333"
	sockets := func() (n int) {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, fd := range list {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	before, first := sockets(), 0
	for n := range 7 {
		begun := time.Now()
		w, errs := tryWorld(t, len(hosts), opTimeout, onHosts(hosts))
		for _, err := range errs {
			require.NoError(t, err)
		}
		t.Logf("group %d was made in %v", n+1, time.Since(begun))
		w.each(func(g *Group) error { return g.try(transfer{coll.AllReduce, 1, 1, equalLength(1000)}, coll.Op{}) })
		all := sockets() - before
		if n == 0 {
			first = all
		}
		require.LessOrEqual(t, all, first)
		require.LessOrEqual(t, all/len(hosts), 2*(len(hosts)-1)+1)
	}
}

// What a death costs grows with the square of the number of processes (TestFramesOfADeath of internal/verdict). No
// thread waits for a link.
func TestManyProcesses(t *testing.T) {
	size := 40
	if testing.Short() {
		size = 20
	}
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		return len(list)
	}
	before := threads()
	w := newHostsWorld(t, strings.Repeat("01234567", size/8+1)[:size])
	w.each(func(g *Group) error { return g.try(transfer{coll.AllReduce, 1, 1, equalLength(1000)}, coll.Op{}) })
	links, more := size*(size-size/8), threads()-before
	t.Logf("%d more threads, %d ends of links", more, links)
	require.Less(t, more, links/2)
	begun := time.Now()
	cutLast(t, w, 1000)
	t.Logf("%d ranks know the cause after %v", size-1, time.Since(begun))
}
