package pgbackend

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// A work that outlives its group reports its own cause, even if another group has taken the place of the group and
// failed.
func TestWorkOutlivesItsGroup(t *testing.T) {
	w := newWorld(t, 2)
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	work, f := sumAsync(w.groups[0], 10)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	first := finish(work) // rank 1 never comes
	require.NoError(t, expect(first, coll.Timeout, "in all_reduce #1", "not arrived: rank 1"))
	again := func(when string) {
		t.Helper()
		if done, f := work.Wait(time.Second); !done || f == nil || *f != *first {
			t.Errorf("%s: %v, expected %v", when, f, first)
		}
	}
	w.destroy()
	again("after its group was destroyed")
	next := newWorld(t, 2)
	again("after another group was made")
	next.groups[1].Abort("a cause of the second group's")
	expectAll(t, next.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }), coll.Aborted, "of the second group's")
	again("after that one failed")
}

// Releasing a work twice does not free a run that is still in a queue.
func TestReleaseTwice(t *testing.T) {
	w, other := newWorld(t, 2), newWorld(t, 2)
	begin := func(w *world) runner.Work {
		work, f := sumAsync(w.groups[0], 10)
		if f != nil {
			t.Fatal(f)
		}
		return work
	}
	work := begin(w)
	work.Release()
	work.Release()
	next := begin(other) // would take the place of the first one
	defer next.Release()
	for _, g := range []*Group{w.groups[1], other.groups[1]} {
		if f := sum(g, 10); f != nil {
			t.Error(f)
		}
	}
	if f := finish(next); f != nil {
		t.Error(f)
	}
}

func TestSegmentsOfPartsOfElements(t *testing.T) {
	w := newWorld(t, 2)
	in, out := make([]byte, 4096), make([]byte, 4096)
	for _, cached := range []bool{false, true} {
		list := w.eachFailure(func(g *Group) *coll.Failure {
			_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, [][]byte{in[:2050], in[2050:]}, one(out))
			return f
		})
		for _, f := range list {
			if err := expect(f, coll.Invalid, "all_reduce", "does not hold whole elements of int32"); err != nil {
				t.Errorf("program cached: %t: %v", cached, err)
			}
		}
		w.each(func(g *Group) error {
			b := one(bytes.Clone(in))
			_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, b, b)
			return asError(f)
		})
	}
}

// A timeout that cannot be added to the time means no timeout.
func TestLongestTimes(t *testing.T) {
	w := newWorldWith(t, 2, math.MaxInt64, nil)
	work, f := sumAsync(w.groups[0], 10)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	began := make(chan struct{})
	ended := make(chan *coll.Failure)
	go func() {
		close(began)
		done, f := work.Wait(math.MaxInt64)
		if !done {
			f = &coll.Failure{Message: "the wait ended before the operation"}
		}
		ended <- f
	}()
	<-began
	if f := sum(w.groups[1], 10); f != nil {
		t.Error(f)
	}
	if f := <-ended; f != nil {
		t.Error(f)
	}
	// The first rank waits past the slices in which deadlines are looked at.
	w.each(func(g *Group) error {
		if g.rank == 1 {
			for w.groups[0].run.Counters().Sleeps == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		return asError(sum(g, 10))
	})
	_, f = w.groups[0].Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Timeout: -1}, one(make([]byte, 40)), one(make([]byte, 40)))
	if err := expect(f, coll.Invalid, "timeout -1ns is negative"); err != nil {
		t.Error(err)
	}
}

// Fields that a kind does not use may differ between ranks.
func TestUnusedFieldsAreNotCompared(t *testing.T) {
	w := newWorld(t, 2)
	for _, op := range []coll.Op{{Kind: coll.AllReduce, Type: coll.Float32}, {Kind: coll.Broadcast, Type: coll.Float32}, {Kind: coll.Barrier}} {
		w.each(func(g *Group) error {
			mine, b := op, one(make([]byte, 40))
			switch op.Kind {
			case coll.AllReduce:
				mine.Root = 7 * g.rank
			case coll.Broadcast:
				mine.Reduce = coll.ReduceOp(g.rank)
			case coll.Barrier:
				mine.Type, mine.Root, b = coll.DataType(g.rank), g.rank, nil
			}
			_, f := g.Issue(mine, b, b)
			return asError(f)
		})
	}
}
