package pgbackend

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// Results and numbers follow the order of issue, whether works are waited for in the opposite order, on another thread,
// by a done function, or never.
func TestAsynchronous(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		const ops = 40
		w.each(func(g *Group) error {
			var done sync.WaitGroup
			var works [ops]runner.Work
			var results [ops][]byte
			failures := make(chan *coll.Failure, ops)
			for i := range ops {
				count := 1 + i*i*13
				in := contributionBytes(coll.Float32, coll.Sum, g.rank, n, count)
				results[i] = in
				before := g.Sequence()
				work, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true}, one(in), one(in))
				if f != nil {
					return f
				}
				works[i] = work
				if s := work.Sequence(); s != 0 && s != before+1 {
					return fmt.Errorf("operation %d has number %d, expected %d", i, s, before+1)
				}
				switch i % 4 {
				case 0:
					done.Add(1)
					work.OnDone(func(f *coll.Failure) {
						failures <- f
						done.Done()
					})
				case 1: // never waited for; its memory must last until it is complete
					work.Release()
					works[i] = runner.Work{}
				case 2:
					done.Go(func() { failures <- finish(work) })
				}
			}
			for i := ops - 1; i >= 0; i-- {
				if i%4 == 3 {
					if f := finish(works[i]); f != nil {
						return f
					}
				}
			}
			done.Wait()
			close(failures)
			for f := range failures {
				if f != nil {
					return f
				}
			}
			if f := sum(g, 1); f != nil { // behind all of them
				return f
			}
			for i := range ops {
				if want := reducedBytes(coll.Float32, coll.Sum, n, len(results[i])/4); !bytes.Equal(results[i], want) {
					return fmt.Errorf("operation %d gave something else", i)
				}
				works[i].Release()
			}
			return nil
		})
	})
}

// The buffers of a work that was released at once are neither collected nor moved before the operation is complete.
func TestDroppedWorkKeepsItsBuffer(t *testing.T) {
	w := newWorld(t, 2)
	var late sync.WaitGroup
	late.Add(1)
	w.each(func(g *Group) error {
		if g.rank == 1 {
			late.Wait()
		}
		for range 50 {
			work, f := sumAsync(g, 20_000)
			if f != nil {
				return f
			}
			work.Release()
		}
		if g.rank == 0 {
			for range 3 {
				runtime.GC()
			}
			late.Done()
		}
		return asError(sum(g, 1))
	})
}

// A done function may issue operations and wait for them, as the communication hooks of DDP do.
func TestDoneFunctionIssuesAndWaits(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		end := make(chan *coll.Failure, 1)
		var next func(depth int)
		next = func(depth int) {
			work, f := sumAsync(g, 3000)
			if f != nil {
				end <- f
				return
			}
			if depth == 0 {
				end <- finish(work)
				work.Release()
				return
			}
			inner := make(chan struct{})
			work.OnDone(func(f *coll.Failure) {
				next(depth - 1)
				close(inner)
			})
			<-inner
			work.Release()
		}
		next(8)
		return asError(<-end)
	})
}

// While one group is being diagnosed, the engine drives the others.
func TestDiagnosingHoldsUpNobody(t *testing.T) {
	sick, well := newWorld(t, 2), newWorld(t, 2)
	begun, goOn := make(chan struct{}), make(chan struct{})
	held := func(p *Process, handle uint64, incident runner.Incident) {
		if handle == sick.groups[0].Handle() {
			close(begun)
			<-goOn
		}
		p.Incident(handle, incident)
	}
	diagnoseInTests.Store(&held)
	defer diagnoseInTests.Store(nil)
	lonely, f := sick.groups[0].Issue(coll.Op{Kind: coll.Barrier, Async: true, Timeout: 10 * time.Millisecond}, nil, nil)
	if f != nil {
		t.Fatal(f.Message)
	}
	<-begun
	well.each(func(g *Group) error {
		end := make(chan *coll.Failure, 1)
		for range 20 {
			work, f := sumAsync(g, 100_000)
			if f != nil {
				return f
			}
			work.OnDone(func(f *coll.Failure) { end <- f }) // nobody waits, so the engine drives
			if f := <-end; f != nil {
				return f
			}
			work.Release()
		}
		return nil
	})
	close(goOn)
	if f := finish(lonely); f == nil || f.Status != coll.Timeout {
		t.Errorf("the operation that nobody joined: %v", f)
	}
	lonely.Release()
}

// Two groups of the same ranks are driven at the same time, by two threads each, in an order that differs by rank.
func TestTwoGroupsAtOnce(t *testing.T) {
	ops := 300
	if quick.Only() {
		ops = 100
	}
	a, b := newWorld(t, 3), newWorld(t, 3)
	a.each(func(g *Group) error {
		other := b.groups[g.rank]
		errs := make(chan *coll.Failure, 2)
		many := func(g *Group) {
			for i := range ops {
				if f := sum(g, 1+i*50); f != nil {
					errs <- f
					return
				}
			}
			errs <- nil
		}
		go many(other)
		many(g)
		for range 2 {
			if f := <-errs; f != nil {
				return f
			}
		}
		// And crossed, asynchronously: groups are independent.
		first, second := g, other
		if g.rank == 1 {
			first, second = other, g
		}
		x, f := sumAsync(first, 50_000)
		if f != nil {
			return f
		}
		y, f := sumAsync(second, 50_000)
		if f != nil {
			return f
		}
		defer x.Release()
		defer y.Release()
		if f := finish(y); f != nil {
			return f
		}
		return asError(finish(x))
	})
}

// A done function that runs inside a wait may release the work: the wait still tells how that operation ended.
func TestDoneFunctionReleasesInsideWait(t *testing.T) {
	w := newWorld(t, 2)
	issued := make(chan struct{})
	w.each(func(g *Group) error {
		if g.rank == 1 {
			<-issued
			return asError(sum(g, 1000))
		}
		work, f := sumAsync(g, 1000)
		if f != nil {
			return f
		}
		var reused runner.Work
		work.OnDone(func(*coll.Failure) {
			work.Release()
			reused, _ = g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 1, Async: true}, nil, one(make([]byte, 8)))
			g.Abort("as the test asked for")
			_ = finish(reused)
		})
		close(issued)
		f = finish(work)
		reused.Release()
		if f != nil && f.Status == coll.Invalid && strings.Contains(f.Message, "bad work handle") {
			t.Log("the operation was complete, and its work released, before the Wait")
			return nil
		}
		return asError(f)
	})
}
