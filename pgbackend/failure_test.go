package pgbackend

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// awaitCall returns when this rank sees that another one has announced its collective of that number.
func awaitCall(g *Group, rank int, sequence uint64) {
	for last, _ := g.run.LastCall(rank); last < sequence; last, _ = g.run.LastCall(rank) {
		time.Sleep(time.Millisecond)
	}
}

// short is a timeout that has to pass. Everything that must happen before it passes happens without waiting.
const short = 150 * time.Millisecond

func TestTimeoutNamesWhoHasNotArrived(t *testing.T) {
	w := newWorld(t, 4)
	w.each(func(g *Group) error {
		if f := sum(g, 10); f != nil || g.rank == 3 {
			return asError(f)
		}
		return nil
	})
	var late sync.WaitGroup
	late.Add(3)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 3 {
			late.Wait()
			return sum(g, 12)
		}
		defer late.Done()
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32}
		if g.rank == 0 { // the others wait for long, and have come before this one gives up
			op.Timeout = short
			awaitCall(g, 1, 2)
			awaitCall(g, 2, 2)
		}
		b := one(make([]byte, 48))
		began := time.Now()
		_, f := g.Issue(op, b, b)
		if took := time.Since(began); g.rank == 0 && (took < short || took > short+5*time.Second) {
			t.Errorf("rank 0 waited %v", took)
		}
		return f
	})
	expectAll(t, list, coll.Timeout, "not arrived: rank 3")
	for _, f := range list {
		if f.Rank != 3 || f.PID != os.Getpid() || f.Op != "all_reduce" || f.Sequence != 2 {
			t.Errorf("culprit: %+v", f)
		}
	}
	// The first cause is the answer to everything from now on.
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }), coll.Timeout, "not arrived: rank 3")
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return g.run.Error() }), coll.Timeout, "not arrived: rank 3")
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return g.Cause() }), coll.Timeout, "not arrived: rank 3")
}

func TestTimeoutOfTheFirstCallAndOfP2P(t *testing.T) {
	w := newWorld(t, 2)
	if err := w.groups[0].SetTimeout(0); err == nil {
		t.Error("a timeout of 0 was taken")
	}
	require.NoError(t, w.groups[0].SetTimeout(short))
	if err := expect(sum(w.groups[0], 1), coll.Timeout, "rank 1"); err != nil {
		t.Error(err)
	}
	for _, op := range []coll.Op{
		{Kind: coll.Recv, Root: 1, Tag: 7}, {Kind: coll.Recv, Root: coll.AnySource, Tag: 7}, {Kind: coll.Send, Root: 1, Tag: 8},
	} {
		for _, async := range []bool{false, true} {
			op.Timeout, op.Async, op.Type = short, async, coll.Uint8
			w := newWorld(t, 2)
			in, out := one(make([]byte, 100_000)), [][]byte(nil)
			if op.Kind == coll.Recv {
				in, out = nil, in
			}
			work, f := w.groups[0].Issue(op, in, out)
			if f == nil { // nobody waits in C: the engine finds it
				end := make(chan *coll.Failure, 1)
				work.OnDone(func(f *coll.Failure) { end <- f })
				f = <-end
				work.Release()
			}
			if err := expect(f, coll.Timeout, op.Kind.String()); err != nil {
				t.Error(err)
			}
		}
	}
}

// A rank that waits in an earlier collective has not arrived either, but it is not the culprit: the rank that it waits
// for is. Rank 0 is the root of two gathers and waits in the first one for rank 2, without end; rank 1 runs out of
// slots.
func TestTimeoutNamesTheRankThatIsFurthestBehind(t *testing.T) {
	w := newWorld(t, 3)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		switch g.rank {
		case 0:
			_, f := g.Issue(coll.Op{Kind: coll.Gather, Type: coll.Uint8}, one(make([]byte, 8)), one(make([]byte, 24)))
			return f
		case 1:
			awaitCall(g, 0, 1)
			var f *coll.Failure
			for f == nil {
				_, f = g.Issue(coll.Op{Kind: coll.Gather, Type: coll.Uint8, Timeout: short}, one(make([]byte, 8)), nil)
			}
			return f
		default:
			return nil // comes to nothing
		}
	})
	expectAll(t, list[:2], coll.Timeout, "not arrived: rank 2")
	for rank, f := range list[:2] {
		if f != nil && f.Rank != 2 {
			t.Errorf("rank %d names rank %d, expected rank 2", rank, f.Rank)
		}
	}
}

// Every rank raises the same mismatch, also ranks whose calls agree.
func TestMismatchReachesAllRanks(t *testing.T) {
	type call struct {
		op      coll.Op
		in, out int
	}
	reduce := call{coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, 4000, 4000}
	for _, c := range []struct {
		name          string
		common, other call
	}{
		{"length", reduce, call{reduce.op, 4004, 4004}},
		{"slots", reduce, call{reduce.op, 4000000, 4000000}},
		{"type", reduce, call{coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, 4000, 4000}},
		{"reduction", reduce, call{coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Max}, 4000, 4000}},
		{"kind", call{coll.Op{Kind: coll.Reduce, Type: coll.Float32}, 8, 8}, call{coll.Op{Kind: coll.Broadcast, Type: coll.Float32}, 8, 8}},
		{"root", call{coll.Op{Kind: coll.Broadcast, Type: coll.Float32}, 8, 8}, call{coll.Op{Kind: coll.Broadcast, Type: coll.Float32, Root: 1}, 8, 8}},
		{"barrier", call{coll.Op{Kind: coll.Barrier}, 0, 0}, reduce},
	} {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, async %t", c.name, async), func(t *testing.T) {
				w := newWorld(t, 3)
				list := w.eachFailure(func(g *Group) *coll.Failure {
					if f := sum(g, 5); f != nil {
						return f
					}
					call := c.common
					if g.rank == 1 {
						call = c.other
					}
					call.op.Async = async
					work, f := g.Issue(call.op, one(make([]byte, call.in))[:min(call.in, 1)], one(make([]byte, call.out))[:min(call.out, 1)])
					if f == nil {
						f = finish(work)
						work.Release()
					}
					for f == nil { // a rank that needed nobody's data goes on until it does
						f = sum(g, 5)
					}
					return f
				})
				expectAll(t, list, coll.Mismatch, "rank 1 called")
			})
		}
	}
}

func TestMismatchOfMessageTypes(t *testing.T) {
	for _, length := range []int{40, 40_000} { // eager and announced
		for _, late := range []int{0, 1} {
			w := newWorld(t, 2)
			posted := make(chan struct{})
			list := w.eachFailure(func(g *Group) *coll.Failure {
				if g.rank == late {
					<-posted
				}
				op, in, out := coll.Op{Kind: coll.Send, Root: 1, Type: coll.Float32, Async: true}, one(make([]byte, length)), [][]byte(nil)
				if g.rank == 1 {
					op, in, out = coll.Op{Kind: coll.Recv, Root: 0, Type: coll.Float64, Async: true}, nil, in
				}
				work, f := g.Issue(op, in, out)
				if g.rank != late {
					close(posted)
				}
				if f == nil {
					f = finish(work)
					work.Release()
				}
				for f == nil {
					f = sum(g, 1)
				}
				return f
			})
			expectAll(t, list, coll.Mismatch, "float64")
		}
	}
}

func TestAbortReachesAllRanks(t *testing.T) {
	w := newWorld(t, 4)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	var entering sync.WaitGroup
	entering.Add(3)
	var began atomic.Int64
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 2 {
			entering.Wait()
			began.Store(time.Now().UnixNano())
			g.Abort("the user gave up")
			g.Abort("again") // nothing more happens
			return g.Cause()
		}
		entering.Done()
		var f *coll.Failure
		switch g.rank {
		case 0:
			f = sum(g, 10)
		case 1:
			var work runner.Work
			if work, f = sumAsync(g, 10); f == nil {
				f = finish(work)
				work.Release()
			}
		case 3:
			_, f = g.Issue(coll.Op{Kind: coll.Recv, Root: 0, Type: coll.Uint8}, nil, one(make([]byte, 1)))
		}
		measure(t, fmt.Sprintf("rank %d hears of it", g.rank), time.Since(time.Unix(0, began.Load())), 2*time.Second)
		return f
	})
	expectAll(t, list, coll.Aborted, "the user gave up")
	if list[0].Rank != 2 {
		t.Errorf("culprit: %+v", list[0])
	}
}

// A rank that has left fails the operations that need it, with its name, and no others.
func TestGoodbye(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		if f := sum(g, 10); f != nil || g.rank != 2 {
			return asError(f)
		}
		return g.Destroy()
	})
	two := &world{t, w.groups[:2]}
	two.each(func(g *Group) error {
		op := coll.Op{Kind: coll.Send, Root: 1, Type: coll.Uint8}
		in, out := one([]byte{1}), [][]byte(nil)
		if g.rank == 1 {
			op.Kind, op.Root = coll.Recv, 0
			in, out = nil, in
		}
		_, f := g.Issue(op, in, out)
		return asError(f)
	})
	expectAll(t, two.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.PeerFailure, "rank 2")
}

// A panic in Go code that C called becomes an error, poisons the group for all ranks and leaves others alone.
func TestPanicBecomesInternal(t *testing.T) {
	w, other := newWorld(t, 3), newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	var once atomic.Bool
	before := lower
	defer func() { lower = before }()
	lower = func(p plan.SlotPlan, op coll.Op) (runner.Compiled, error) {
		if once.CompareAndSwap(false, true) {
			panic("a fault for the test")
		}
		return before(p, op)
	}
	list := w.eachFailure(func(g *Group) *coll.Failure {
		b := one(make([]byte, 8))
		_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int64, Reduce: coll.Max}, b, b)
		return f
	})
	expectAll(t, list, coll.Internal, "internal error on rank", "a fault for the test")
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.Internal, "a fault for the test")
	other.each(func(g *Group) error { return asError(sum(g, 10)) })
}

// A rank whose caller cannot go on as its peers do fails the group with its reason, on all ranks.
func TestCallerFailsTheGroup(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	for _, status := range []coll.Status{coll.OK, coll.Invalid, coll.Aborted, coll.Forked} {
		require.ErrorContains(t, w.groups[1].Fail(&coll.Failure{Status: status}), "expected system or internal")
	}
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	require.NoError(t, w.groups[1].Fail(&coll.Failure{Status: coll.Internal, Op: "all_reduce", Sequence: 2, OnDevice: true, Message: "a reason"}))
	require.NoError(t, w.groups[2].Fail(&coll.Failure{Status: coll.System, Message: "a later one"}))
	list := w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) })
	expectAll(t, list, coll.Internal, "rank 1 (", "cannot go on as its peers do in all_reduce #2 on a device: a reason")
	for _, f := range list {
		require.Equal(t, 1, f.Rank)
		require.Equal(t, uint64(2), f.Sequence)
	}
	fault := &coll.Failure{Status: coll.Internal, Message: "too late"}
	require.NoError(t, w.groups[0].Destroy())
	require.ErrorContains(t, w.groups[0].Fail(fault), "is destroyed")
}

// A rank without memory for a call of its peers tells all of them instead of letting them wait.
func TestRankThatCannotJoinIsNamed(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	var once atomic.Bool
	before := lower
	defer func() { lower = before }()
	lower = func(p plan.SlotPlan, op coll.Op) (runner.Compiled, error) {
		if p.Rank == 1 && once.CompareAndSwap(false, true) {
			return runner.Compiled{}, errors.New("no memory, for the test")
		}
		return before(p, op)
	}
	list := w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10_000) })
	expectAll(t, list, coll.System, "no memory, for the test")
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.System, "no memory, for the test")
}

// A call that is refused is refused at once, takes no number and harms no other operation.
func TestRefusals(t *testing.T) {
	w := newWorld(t, 2)
	b := one(make([]byte, 12))
	w.each(func(g *Group) error {
		for round := range 2 { // the second time some find a program of that key
			for _, c := range []struct {
				op      coll.Op
				in, out [][]byte
				part    string
			}{
				{coll.Op{Kind: coll.AllReduce, Type: coll.Int64}, b, b, "not whole elements of int64"},
				{coll.Op{Kind: coll.AllReduce, Type: coll.Bool, Reduce: coll.Avg}, b, b, "AVG is not defined for bool"},
				{coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Reduce: 9}, b, b, "not known"},
				{coll.Op{Kind: coll.AllReduce, Type: 99}, b, b, "not known"},
				{coll.Op{Kind: 99}, b, b, "not known"},
				{coll.Op{Kind: coll.Broadcast, Type: coll.Int32, Root: 2}, b, b, "root 2 is outside the group"},
				{coll.Op{Kind: coll.Broadcast, Type: coll.Int32, Root: g.rank}, nil, b, "expected equal lengths on the root"},
				{coll.Op{Kind: coll.Reduce, Type: coll.Int32, Root: g.rank}, b, nil, "expected equal lengths on the root"},
				{coll.Op{Kind: coll.AllGather, Type: coll.Int32}, b, b, "expected an output 2 times as long"},
				{coll.Op{Kind: coll.Send, Type: coll.Int32, Root: 5}, b, nil, "peer 5 is outside the group"},
			} {
				for _, async := range []bool{false, true} {
					c.op.Async = async
					before := g.Sequence()
					_, f := g.Issue(c.op, c.in, c.out)
					if err := expect(f, coll.Invalid, c.part); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
					if !strings.HasPrefix(f.Message, "sagecomm: ") || g.Sequence() != before {
						return fmt.Errorf("%q; number %d became %d", f.Message, before, g.Sequence())
					}
				}
			}
			if f := sum(g, 3); f != nil {
				return f
			}
			for root := range 2 {
				if _, f := g.Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Int32, Root: root}, b, b); f != nil {
					return f
				}
				if _, f := g.Issue(coll.Op{Kind: coll.Reduce, Type: coll.Int32, Root: root}, b, b); f != nil {
					return f
				}
			}
		}
		return nil
	})
}

// Errors of a subgroup name its description and the ranks' numbers in the job.
func TestErrorsOfASubgroup(t *testing.T) {
	store := bootstrap.NewMemStore()
	w := &world{t, make([]*Group, 2)}
	t.Cleanup(w.destroy)
	ranksOf(t, 2, func(rank int) (err error) {
		w.groups[rank], err = Get().Create(Config{Rank: rank, Size: 2, GlobalRanks: []int{2, 1}, Name: "7", Timeout: opTimeout, Store: store})
		return err
	})
	for _, g := range w.groups {
		g.Describe("pair")
	}
	host := fmt.Sprintf("host %s, pid %d", w.groups[0].members[0].Host, os.Getpid())
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10+g.rank) }), coll.Mismatch, `group "pair": ranks disagree`,
		"rank 0 (global rank 2) called all_reduce (float32, SUM, 10 elements)", "rank 1 called all_reduce (float32, SUM, 11 elements)",
		"rank 0: global rank 2, "+host, "rank 1: "+host)
}
