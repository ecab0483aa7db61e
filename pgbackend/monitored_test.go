package pgbackend

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// Programs that were written for gloo look for its words, which differ between the rank that watches and the others.
func TestMonitoredBarrierHasGloosWords(t *testing.T) {
	for _, c := range []struct {
		timeout time.Duration // as the caller gave it
		all     bool
		first   string // rank 0's message begins so
	}{
		{short, false, "Rank 1 failed to pass monitoredBarrier in 150 ms; sagecomm: group "},
		{short, true, "Ranks 1, 3 failed to pass monitoredBarrier in 150 ms; sagecomm: group "},
		{0, true, "Rank 0 timed out in monitoredBarrier after 0 ms; sagecomm: group "},
	} {
		w := newWorld(t, 4)
		list := w.eachFailure(func(g *Group) *coll.Failure {
			if g.rank%2 == 1 {
				return nil
			}
			op := coll.Op{Kind: coll.Barrier}
			if g.rank == 0 { // rank 2 waits for long, and has come before this one gives up
				op.Timeout = short
				awaitCall(g, 2, 1)
			}
			for range 2 { // the second call raises the first cause again
				if _, f := g.Issue(op, nil, nil); f == nil {
					return nil
				}
			}
			return g.MonitoredCause(c.timeout, c.all)
		})
		for rank, begin := range map[int]string{
			0: c.first,
			2: "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0; sagecomm: group ",
		} {
			if err := expect(list[rank], coll.Timeout, "not arrived: rank 1", "; rank 3"); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			} else if !strings.HasPrefix(list[rank].Message, begin) {
				t.Errorf("rank %d: %q does not begin with %q", rank, list[rank].Message, begin)
			}
		}
		if plain := w.groups[0].Cause().Message; !strings.HasPrefix(plain, "sagecomm: ") {
			t.Errorf("the group's cause begins with %q", plain)
		}
	}
}

// Failures other than the timeout of that barrier keep their own texts.
func TestOtherCausesOfAMonitoredBarrier(t *testing.T) {
	w := newWorld(t, 2)
	if f := w.groups[0].MonitoredCause(time.Second, false); f != nil {
		t.Errorf("nothing has failed: %v", f)
	}
	b := one(make([]byte, 8))
	_, f := w.groups[0].Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Uint8, Root: 1, Timeout: short}, nil, b)
	require.NoError(t, expect(f, coll.Timeout, "in broadcast #1"))
	if got := w.groups[0].MonitoredCause(time.Second, false); got == nil || got.Message != f.Message {
		t.Errorf("%v, expected %v", got, f)
	}
	require.NoError(t, w.groups[0].Destroy())
	if err := expect(w.groups[0].MonitoredCause(time.Second, false), coll.Invalid, "destroyed"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		rank    int
		missing []int
		begin   string
	}{{0, nil, "Rank 0 timed out in monitoredBarrier after 1000 ms"}, {0, []int{2}, "Rank 2 failed to pass"}, {1, []int{0}, "Rank 1 successfully reached"}} {
		if got := inGloosWords(c.rank, c.missing, time.Second, true); !strings.HasPrefix(got, c.begin) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Between hosts, who words the timeout of a barrier asks no rank again where this rank has diagnosed it: the thread
// would not look for signals.
func TestMonitoredBarrierOverHosts(t *testing.T) {
	setCompareEvery(t, time.Hour)
	patient(t, time.Second)
	notLate(t, monitoredBarrierOverHosts)
}

func monitoredBarrierOverHosts(t *testing.T) (late bool) {
	between := newWire(t, 0, 3, false)
	w := newHostsWorld(t, "0123", between)
	g := w.groups[0]
	arrived, f := w.groups[2].Issue(coll.Op{Kind: coll.Barrier, Async: true}, nil, nil)
	require.Nil(t, f)
	_, f = g.Issue(coll.Op{Kind: coll.Barrier, Timeout: short}, nil, nil)
	if saysSilent(f, 1) || saysSilent(f, 2) || saysSilent(f, 3) {
		require.NotNil(t, finish(arrived))
		return true
	}
	require.NoError(t, expect(f, coll.Timeout, "not arrived: rank 1 (", "; rank 3 ("))
	states := func() (n int64) {
		for _, rank := range g.remoteRanks() {
			n += g.remotes[rank].states.Load()
		}
		return n
	}
	before := states()
	require.NoError(t, expect(g.MonitoredCause(short, true), coll.Timeout, "Ranks 1, 3 failed to pass monitoredBarrier in 150 ms; sagecomm: group "))
	require.Equal(t, before, states())

	// A rank that has not diagnosed it, because another one was earlier, asks who has arrived.
	g.incidents.missing.Store(nil)
	require.Eventually(t, func() bool { // a busy machine answers late
		return strings.HasPrefix(g.MonitoredCause(short, true).Message, "Ranks 1, 3 failed to pass monitoredBarrier in 150 ms; sagecomm: group ")
	}, opTimeout, time.Millisecond)
	require.Greater(t, states(), before)

	// Of those that do not answer it is not known who has arrived since, but for the culprit.
	between.stop(0)
	defer between.goOn()
	require.Equal(t, 1, f.Rank)
	require.NoError(t, expect(g.MonitoredCause(short, true), coll.Timeout, "Rank 1 failed to pass monitoredBarrier in 150 ms; sagecomm: group "))
	require.NotNil(t, finish(arrived))
	return false
}

// It does not wait for answers as long as a diagnosis does. Of a rank that does not answer it is not known whether it
// has come, so it is not named, but where the failure names it.
func TestMonitoredBarrierWaitsForNobodyForLong(t *testing.T) {
	patient(t, 2*hangAfter)
	between := newWire(t, 0, 1, false)
	w := newHostsWorld(t, "01", between)
	between.stop(0)
	w.each(func(g *Group) error {
		if g.rank == 0 {
			require.Empty(t, g.missingFrom(1))
		}
		return nil
	})
	between.goOn()
}
