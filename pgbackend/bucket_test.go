package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

var fused = options{"fusion": "static"}

// withoutLinger lets no bucket be proposed because of its age, so that a test decides what is in it.
func withoutLinger(t *testing.T) {
	before := bucketLinger
	bucketLinger = time.Hour
	t.Cleanup(func() { bucketLinger = before })
}

// together returns a function that returns when n goroutines have called it.
func together(n int) func() {
	var all sync.WaitGroup
	all.Add(n)
	return func() {
		all.Done()
		all.Wait()
	}
}

// issueSums issues asynchronous all_reduces of 512 float32.
func issueSums(g *Group, n int) (works []runner.Work, f *coll.Failure) {
	for range n {
		work, f := sumAsync(g, 512)
		if f != nil {
			finishAll(works)
			return nil, f
		}
		works = append(works, work)
	}
	return works, nil
}

func finishAll(works []runner.Work) (first *coll.Failure) {
	for _, w := range works {
		if f := finish(w); first == nil {
			first = f
		}
		w.Release()
	}
	return first
}

// Ten operations are one collective and one agreement. Numbers, statistics and the flight recorder are those of the
// operations.
func TestOperationsShareACollective(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 3, opTimeout, fused)
	issued := together(3)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 10)
		if f != nil {
			return f
		}
		for i, work := range works {
			if work.Sequence() != uint64(i+1) {
				return fmt.Errorf("operation %d has the number %d", i, work.Sequence())
			}
		}
		issued()
		if f := finishAll(works); f != nil {
			return f
		}
		if collectives := g.run.Sequence(); collectives != 2 || g.Sequence() != 10 {
			return fmt.Errorf("%d collectives for %d operations", collectives, g.Sequence())
		}
		list := g.run.Stats()
		if len(list) != 1 || list[0].Type != coll.Float32 || list[0].Count != 10 || list[0].Bytes != 10*2048 || list[0].Fused != 10 {
			return fmt.Errorf("statistics: %+v", list)
		}
		log := g.run.Flights()
		for i, flight := range log.Flights {
			if flight.Number != uint64(i+1) || flight.Progress != runner.Completed || flight.Op.Bytes() != 2048 || flight.Created.After(flight.Started) {
				return fmt.Errorf("record %d: %+v", i, flight)
			}
		}
		if len(log.Flights) != 10 || log.Issued != 10 || log.Started != 10 || log.Completed != 10 {
			return fmt.Errorf("records: %+v", log)
		}
		return nil
	})
}

// Operations in an open bucket are scheduled in the flight recorder.
func TestOpenBucketIsRecorded(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	issued := together(2)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 3)
		if f != nil {
			return f
		}
		log := g.run.Flights()
		issued()
		if len(log.Flights) != 3 || log.Flights[2].Progress != runner.Scheduled || log.Issued != 3 || log.Started != 0 {
			return fmt.Errorf("records: %+v", log)
		}
		return asError(finishAll(works))
	})
}

// A rank that waits for an operation of an open bucket is in it, and its peer is not.
func TestStatusOfARankThatWaitsForABucket(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 3)
		if f != nil {
			return f
		}
		return asError(finishAll(works))
	})
	works, f := issueSums(w.groups[0], 1)
	if f != nil {
		t.Fatal(f)
	}
	waited := make(chan *coll.Failure, 1)
	go func() { waited <- finishAll(works) }()
	var seen [2]string
	for end := time.Now().Add(hangAfter); seen[0] != "in #4"; time.Sleep(time.Millisecond) {
		for i, r := range statusOf(t, w.groups[1]).Ranks {
			seen[i] = fmt.Sprintf("%s #%d", r.State, r.Issued)
		}
		if time.Now().After(end) {
			t.Fatalf("rank 1 sees %q", seen)
		}
	}
	if seen[1] != "done #3" {
		t.Errorf("rank 1 sees %q", seen)
	}
	works, f = issueSums(w.groups[1], 1)
	if f == nil {
		f = finishAll(works)
	}
	if other := <-waited; f != nil || other != nil {
		t.Errorf("%v, %v", f, other)
	}
}

// A rank answers although no thread of it waits: it looks whether a peer has begun an agreement.
func TestRankThatDoesNotWaitAnswers(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 3)
		if f != nil {
			return f
		}
		message := make([]byte, 8)
		if g.rank == 0 { // rank 1 waits for the message only
			if f := finish(works[2]); f != nil {
				return f
			}
			_, f = g.Issue(coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: 1}, one(message), nil)
		} else {
			_, f = g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 0}, nil, one(message))
		}
		if f != nil {
			return f
		}
		return asError(finishAll(works))
	})
}

// Where no rank waits, buckets are proposed because of their age, and done functions are called.
func TestNobodyWaits(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 20)
		if f != nil {
			return f
		}
		done := make(chan *coll.Failure, len(works))
		for _, work := range works {
			work.OnDone(func(f *coll.Failure) { done <- f })
		}
		for range works {
			if f := <-done; f != nil {
				return f
			}
		}
		for _, work := range works {
			work.Release()
		}
		return nil
	})
}

// A waiter carries out the bucket of its operation. The done functions of the others are called although nobody waits
// for them, and one of them may wait for the next.
func TestDoneFunctionsOfABucketThatAWaiterHasCarriedOut(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	issued := together(2)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 5)
		if f != nil {
			return f
		}
		var done [5]chan *coll.Failure
		for i := range done {
			done[i] = make(chan *coll.Failure, 1)
		}
		for i, work := range works[1:] {
			work.OnDone(func(f *coll.Failure) {
				if i+2 < len(done) {
					done[i+2] <- <-done[i+2]
				}
				done[i+1] <- f
			})
		}
		issued()
		if f := finish(works[0]); f != nil {
			return f
		}
		for i := range works[1:] {
			if f := <-done[i+1]; f != nil {
				return f
			}
		}
		return asError(finishAll(works))
	})
}

// Later operations see the result of those in a bucket before them, also where memory is shared.
func TestNothingOvertakesABucket(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		for round := range 50 {
			b := contributionBytes(coll.Int32, coll.Sum, g.rank, 2, 100)
			var works []runner.Work
			for range 1 + round%3 { // the same buffer: they may not share a collective
				work, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Async: true}, one(b), one(b))
				if f != nil {
					return f
				}
				works = append(works, work)
			}
			all := make([]byte, 800)
			if _, f := g.Issue(coll.Op{Kind: coll.AllGather, Type: coll.Int32}, one(b), one(all)); f != nil {
				return f
			}
			want := make([]byte, 400)
			for i := range 100 {
				encode(want, coll.Int32, i, reduced(coll.Int32, coll.Sum, 2, i)<<(round%3))
			}
			if !bytes.Equal(all, slices.Concat(want, want)) {
				return fmt.Errorf("round %d: the all_gather has other numbers", round)
			}
			if f := finishAll(works); f != nil {
				return f
			}
		}
		return nil
	})
}

// One rank waits inside its calls, the other one later.
func TestSynchronousOnOneRankOnly(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		for range 50 {
			if g.rank == 0 {
				for range 4 {
					if f := sum(g, 512); f != nil {
						return f
					}
				}
				continue
			}
			works, f := issueSums(g, 4)
			if f != nil {
				return f
			}
			if f := finishAll(works); f != nil {
				return f
			}
		}
		return nil
	})
}

// Destroy lets the operations of an open bucket end.
func TestDestroyWithAnOpenBucket(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 3)
		if f != nil {
			return f
		}
		if err := g.Destroy(); err != nil {
			return err
		}
		return asError(finishAll(works))
	})
}

// A rank may destroy the group as soon as it has waited for one operation of a bucket: the others are complete too, and
// their done functions are called.
func TestDestroyAfterAWaitForOneOperationOfABucket(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	issued := together(2)
	w.each(func(g *Group) error {
		works, f := issueSums(g, 5)
		if f != nil {
			return f
		}
		done := make(chan *coll.Failure, len(works))
		for _, work := range works[1:] {
			work.OnDone(func(f *coll.Failure) { done <- f })
		}
		issued()
		if f := finish(works[0]); f != nil {
			return f
		}
		if err := g.Destroy(); err != nil {
			return err
		}
		for range works[1:] {
			if f := <-done; f != nil {
				return f
			}
		}
		return asError(finishAll(works))
	})
}

// All works of an open bucket, and of what is behind it, fail with the cause: waited for, with a done function, and
// issued later.
func TestAbortWithAnOpenBucket(t *testing.T) {
	withoutLinger(t)
	w := newWorldWith(t, 2, opTimeout, fused)
	begun := make(chan struct{})
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 1 {
			<-begun
			g.Abort("for the test")
			return g.failed()
		}
		works, f := issueSums(g, 3)
		if f != nil {
			return f
		}
		behind, f := g.Issue(coll.Op{Kind: coll.Barrier, Async: true}, nil, nil)
		if f != nil {
			return f
		}
		done := make(chan *coll.Failure, 1)
		behind.OnDone(func(f *coll.Failure) { done <- f })
		waiting := make(chan *coll.Failure, 1)
		go func() { waiting <- finish(works[1]) }()
		close(begun)
		for _, f := range []*coll.Failure{<-done, <-waiting, finish(works[0]), finish(works[2]), sum(g, 1)} {
			if f == nil || f.Status != coll.Aborted {
				return &coll.Failure{Message: fmt.Sprintf("it ended with %v", f)}
			}
		}
		for _, work := range append(works, behind) {
			work.Release()
		}
		return g.failed()
	})
	expectAll(t, list, coll.Aborted, "for the test")
	w.groups[0].buckets.awaitTheEndOfTicks(t)
}

// A program that cannot be compiled, or a panic, when a bucket is carried out. Two threads of each rank wait, for
// operations of one bucket.
func TestBucketThatCannotBeCarriedOut(t *testing.T) {
	for _, fault := range []func() error{
		func() error { return errors.New("no memory, for the test") },
		func() error { panic("a fault, for the test") },
	} {
		w := newWorldWith(t, 2, opTimeout, fused)
		before := lower
		defer func() { lower = before }()
		lower = func(p plan.SlotPlan, op coll.Op) (runner.Compiled, error) {
			if p.Rank == 1 && op.Type == coll.Float32 {
				return runner.Compiled{}, fault()
			}
			return before(p, op)
		}
		list := w.eachFailure(func(g *Group) *coll.Failure {
			works, f := issueSums(g, 3)
			if f != nil {
				return f
			}
			beside := make(chan *coll.Failure)
			go func() { beside <- finishAll(works[2:]) }()
			f = finishAll(works[:2])
			if other := <-beside; other == nil || f == nil || other.Rank != f.Rank {
				t.Errorf("one thread is told %v, another one %v", f, other)
			}
			return f
		})
		lower = before
		for rank, f := range list {
			if f == nil || f.Rank != 1 {
				t.Errorf("rank %d: %v", rank, f)
			}
		}
		if b := w.groups[1].buckets; !b.stuck {
			t.Error("another thread could make the next step, with other operations than those of the runner's list")
		}
		for _, g := range w.groups {
			g.buckets.awaitTheEndOfTicks(t)
		}
		w.destroy()
	}
}

// awaitTheEndOfTicks waits until a group that has failed looks no more after its open bucket.
func (b *buckets) awaitTheEndOfTicks(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(hangAfter); ; time.Sleep(bucketTick) {
		b.mu.Lock()
		ticking := b.ticking
		b.mu.Unlock()
		switch {
		case !ticking:
			return
		case time.Now().After(end):
			t.Fatal("the timer of a group that has failed goes on")
		}
	}
}
