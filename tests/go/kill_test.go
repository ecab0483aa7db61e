package ranks

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

func itoa(n int) string { return strconv.Itoa(n) }

// bound is how soon a survivor must know, from the later of the death and its entering the operation.
const bound = 2 * time.Second

// expectReleased waits until the process has no more than so many descriptors and goroutines. The news of a death can reach a rank through
// a peer before it comes from the system, which is what ends its watch.
func (p *process) expectReleased(descriptors, goroutines int) {
	p.t.Helper()
	for began := time.Now(); ; {
		p.order(command{Do: "count"})
		now := p.answer("count")
		if now.FDs <= descriptors && now.Goroutines <= goroutines {
			return
		}
		if time.Since(began) > 3*bound {
			p.t.Fatalf("rank %d has %d descriptors and %d goroutines, before %d and %d", p.rank, now.FDs, now.Goroutines, descriptors, goroutines)
		}
	}
}

// One of four ranks is killed at a random moment in a loop of all_reduces. Every survivor gets PeerFailure with its
// rank and pid in time, again and again; nothing stays behind; and the survivors go on in a new group.
func TestKillAtRandomMoments(t *testing.T) {
	random := newRandom(t)
	rounds := *kills
	if quick.Only() {
		rounds = min(rounds, 3) // one for each way to attach
	}
	for i := range rounds {
		victim, delay := random.IntN(4), time.Duration(random.IntN(40_000))*time.Microsecond
		method := []string{"proc", "scm", "tmpfs"}[i%3]
		t.Run(fmt.Sprintf("%d, rank %d after %v, %s", i, victim, delay, method), func(t *testing.T) {
			dir := t.TempDir()
			list := start(t, 4, map[string]string{"shm_attach": method, "shm_dir": dir})
			create(t, list, "first", 0)
			succeed(t, all(list, command{Do: "loop", Ops: 6}))
			succeed(t, all(list, command{Do: "destroy"}))
			before := all(list, command{Do: "count"})
			create(t, list, "second", 0)
			for _, p := range list {
				p.order(command{Do: "loop"})
			}
			for _, p := range list {
				p.answer("looping")
			}
			time.Sleep(delay)
			killed := time.Now()
			dead := list[victim]
			require.NoError(t, dead.cmd.Process.Kill())
			survivors := append(append([]*process{}, list[:victim]...), list[victim+1:]...)
			var reports []report
			for _, p := range survivors {
				r := p.answer("loop")
				since := killed
				if r.Entered.After(since) {
					since = r.Entered
				}
				measure(t, fmt.Sprintf("rank %d knows", p.rank), r.At.Sub(since), bound)
				reports = append(reports, r)
			}
			expectCulprit(t, reports, coll.PeerFailure, dead, "died", fmt.Sprintf("rank %d", victim))
			expectCulprit(t, all(survivors, command{Do: "once"}), coll.PeerFailure, dead)
			_ = dead.end()
			succeed(t, all(survivors, command{Do: "destroy"}))
			for _, p := range survivors {
				was := before[p.rank]
				if method == "tmpfs" {
					was.FDs++ // a group's own file stays open, with its engine bell
				}
				p.expectReleased(was.FDs, was.Goroutines)
			}
			for i, p := range survivors {
				p.order(command{Do: "create", Name: "third", Rank: i, Size: 3, Timeout: opTimeout})
			}
			for _, p := range survivors {
				if r := p.answer("create"); r.Error != "" {
					t.Fatal(r.Error)
				}
			}
			succeed(t, all(survivors, command{Do: "loop", Ops: 12}))
			for _, p := range survivors {
				if err := p.end(); err != nil {
					t.Error(err)
				}
			}
			nothingLeft(t, "/dev/shm", list)
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// If all ranks die at once, nothing stays behind although no rank can clean up.
func TestKillAll(t *testing.T) {
	dir := t.TempDir()
	list := start(t, 3, map[string]string{"shm_attach": "tmpfs", "shm_dir": dir})
	create(t, list, "g", 0)
	for _, p := range list {
		p.order(command{Do: "loop"})
	}
	for _, p := range list {
		p.answer("looping")
	}
	for _, p := range list {
		require.NoError(t, p.cmd.Process.Kill())
	}
	for _, p := range list {
		_ = p.end()
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A timeout names a rank that is stopped, and when that rank goes on it gets the same cause.
func TestStoppedRankIsNamed(t *testing.T) {
	list := start(t, 4, nil)
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "timeout", Timeout: time.Second}))
	for _, p := range list {
		p.order(command{Do: "loop", Elements: 8})
	}
	for _, p := range list {
		p.answer("looping")
	}
	stopped := list[2]
	signal := func(s unix.Signal) {
		require.NoError(t, stopped.cmd.Process.Signal(s))
	}
	signal(unix.SIGSTOP)
	var reports []report
	var longest time.Duration
	for _, p := range []*process{list[0], list[1], list[3]} {
		r := p.answer("loop")
		longest = max(longest, r.At.Sub(r.Entered)) // the rank that enters last waits less
		reports = append(reports, r)
	}
	signal(unix.SIGCONT)
	if longest < time.Second {
		t.Errorf("the ranks waited %v, expected 1 s", longest)
	}
	measure(t, "the ranks give up", longest, 4*time.Second)
	reports = append(reports, stopped.answer("loop"))
	expectCulprit(t, reports, coll.Timeout, stopped, "timed out after its timeout of 1s in all_reduce #", "rank 2 (host ")
}

// Inside a long reduce the root waits for the rank that was stopped and the others wait for the root.
func TestRankStoppedInsideACollectiveIsNamed(t *testing.T) {
	quick.Skip(t, "it waits for a timeout of seconds; TestStoppedRankIsNamed waits for a shorter one")
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		list := start(t, 4, map[string]string{"tune": "reduce:one_shot@chunk=64K"})
		create(t, list, "g", 4*time.Second) // the first one touches its memory
		for _, p := range list {
			p.order(command{Do: "reduce", Elements: 8 << 20, Async: round >= 2})
		}
		for _, p := range list {
			p.answer("looping")
		}
		stopped := list[round%2+1]
		require.NoError(t, stopped.cmd.Process.Signal(unix.SIGSTOP))
		var reports []report
		for _, p := range list {
			if p != stopped {
				reports = append(reports, p.answer("reduce"))
			}
		}
		require.NoError(t, stopped.cmd.Process.Signal(unix.SIGCONT))
		reports = append(reports, stopped.answer("reduce"))
		expectCulprit(t, reports, coll.Timeout, stopped, "timed out after its timeout of 4s in reduce #", fmt.Sprintf("rank %d (host ", round%2+1))
	}
}

// A rank that was stopped for longer than the timeout does not take that for a fault of its peers, whichever thread drives.
func TestRankThatWasStoppedNamesNoCulprit(t *testing.T) {
	list := start(t, 2, nil)
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "once"}))
	succeed(t, all(list, command{Do: "timeout", Timeout: time.Second}))
	stopped := list[0]
	stopped.order(command{Do: "async"})
	stopped.answer("issued")
	for _, s := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		require.NoError(t, stopped.cmd.Process.Signal(s))
		if s == unix.SIGSTOP {
			time.Sleep(1500 * time.Millisecond) // past the time of the operation
		}
	}
	time.Sleep(100 * time.Millisecond) // the engine looks again, and must not give up
	list[1].order(command{Do: "async"})
	list[1].answer("issued")
	for _, p := range list {
		if r := p.answer("async"); r.Failure != nil {
			t.Error(r.Failure)
		}
	}
}

// After a rank has left in order, operations that do not need it succeed, and operations that need it fail with its name.
func TestCleanExit(t *testing.T) {
	list := start(t, 3, nil)
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "loop", Ops: 10}))
	succeed(t, all(list[2:], command{Do: "destroy"}))
	require.NoError(t, list[2].end())
	stay := list[:2]
	succeed(t, all(stay, command{Do: "ring", Size: 2}))
	expectCulprit(t, all(stay, command{Do: "once"}), coll.PeerFailure, list[2], "left", "#10")
}

// A rank that ends without a goodbye, however quietly, has died.
func TestExitWithoutGoodbye(t *testing.T) {
	list := start(t, 2, nil)
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "loop", Ops: 10}))
	require.NoError(t, list[1].end())
	expectCulprit(t, all(list[:1], command{Do: "once"}), coll.PeerFailure, list[1], "died", "#10")
}
