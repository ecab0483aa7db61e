package pgbackend

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// A rank that leaves with nothing outstanding is no failure to peers that do not need it, and says which rank has left
// to those that do.
func TestARankLeavesAtOnce(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 1)) })
	w.groups[0].Leave("the test")
	w.each(func(g *Group) error {
		if g.rank == 0 {
			return expect(sum(g, 1), coll.Invalid, "destroyed")
		}
		if f := g.failed(); f != nil {
			return f
		}
		peer := 3 - g.rank
		calls := []runner.Coalesced{
			{Op: p2pOp(coll.Send, peer, 0), In: one(payload(g.rank, peer, 0, 10))},
			{Op: p2pOp(coll.Recv, peer, 0), Out: one(make([]byte, 10))},
		}
		return coalesced(g, calls)
	})
	for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 0 {
			return nil
		}
		return sum(g, 1)
	}) {
		if rank == 0 {
			continue
		}
		if err := expect(f, coll.PeerFailure, "rank 0", "has left the group"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// What a rank has outstanding when it leaves makes the group fail: an operation that a peer has not called, and a
// control exchange.
func TestARankLeavesOperationsBehind(t *testing.T) {
	issue := func(g *Group, op coll.Op, in, out [][]byte) (end func()) {
		op.Async = true
		work, _ := g.Issue(op, in, out)
		return func() {
			_ = finish(work) // it fails with the group
			work.Release()
		}
	}
	begin := map[string]func(g *Group) (end func()){
		"collective": func(g *Group) func() {
			b := one(make([]byte, 4))
			return issue(g, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, b, b)
		},
		"recv": func(g *Group) func() {
			return issue(g, coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 1}, nil, one(make([]byte, 4)))
		},
		"exchange": func(g *Group) func() {
			var over sync.WaitGroup
			over.Go(func() { _, _ = g.exchange(topicMembers, "the test", nil, g.timeout()) })
			for g.exchanges.Load() == 0 {
				runtime.Gosched()
			}
			return over.Wait
		},
	}
	for name, begin := range begin {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			end := begin(w.groups[0])
			w.groups[0].Leave("the test")
			end()
			for rank, f := range w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }) {
				if err := expect(f, coll.Aborted, "was aborted by rank 0: the test"); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// An operation that the stream has ended is not outstanding, however late a driver of the lane sees that.
func TestARankLeavesBehindAStream(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 41, waits)
		w := newWorld(t, 2)
		w.each(func(g *Group) error {
			d := devices[g.rank]
			b := d.buffer(1000)
			d.fill(b, contributionBytes(coll.Int32, coll.Sum, g.rank, 2, 250))
			work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			if f == nil {
				f = work.finish()
			}
			return asError(f)
		})
		w.groups[0].Leave("the test")
		if f := w.groups[1].failed(); f != nil {
			t.Error(f)
		}
	})
}

// A shrink aborts its parent first if the caller has found something outstanding, and leaves it as it is otherwise,
// whatever is called since.
func TestShrinkAbortsItsParent(t *testing.T) {
	for name, c := range map[string]struct {
		aborts Aborts
		issue  bool
		fails  bool
	}{
		"nothing":      {AbortsElsewhere, false, false},
		"a later recv": {AbortsElsewhere, true, false},
		"a recv":       {AbortsHere, true, true},
		"not issued":   {AbortsHere, false, true},
		"not aborted":  {NoAbort, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			groups := joined(t, 3)
			end := func() {}
			require.False(t, groups[0].Outstanding())
			if c.issue {
				work, f := groups[0].Issue(coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 2, Async: true}, nil, one(make([]byte, 4)))
				require.Nil(t, f)
				require.True(t, groups[0].Outstanding())
				end = func() {
					_ = finish(work)
					work.Release()
				}
			}
			rest, err := Get().Shrink(children(groups[:2], func(int) Child { return Child{LeftOut: []int{2}, Aborts: c.aborts} }))
			require.NoError(t, err)
			defer destroyAll(rest)
			for rank, g := range groups {
				f := g.failed()
				require.Equal(t, c.fails, f != nil, "rank %d", rank)
				if c.fails {
					require.Equal(t, coll.Aborted, f.Status)
					require.Contains(t, f.Message, "it is shrunk, and its operations were to be aborted")
					require.Equal(t, "shrink", f.Op)
				}
				require.Nil(t, rest[min(rank, 1)].failed())
			}
			groups[0].Abort("the test is over")
			end()
		})
	}
}

// Whoever has called the shrink that has aborted the group is told so, and whoever has called another one, or none, is
// not.
func TestWhichShrinkHasAborted(t *testing.T) {
	groups := joined(t, 4)
	shrink := func(ranks []int, leftOut []int, aborts Aborts) {
		var list []*Group
		for _, rank := range ranks {
			list = append(list, groups[rank])
		}
		rest, err := Get().Shrink(children(list, func(int) Child { return Child{LeftOut: leftOut, Aborts: aborts} }))
		require.NoError(t, err)
		destroyAll(rest)
	}
	shrink([]int{0, 1, 2}, []int{3}, AbortsElsewhere) // nothing is outstanding
	shrink([]int{1, 2}, []int{0, 3}, AbortsHere)
	for rank, want := range []bool{false, true, true, false} {
		require.NotNil(t, groups[rank].failed())
		require.Equal(t, want, groups[rank].AbortedByShrink(), "rank %d", rank)
	}
}
