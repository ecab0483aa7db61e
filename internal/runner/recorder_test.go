package runner

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

func sumOf(elements int) coll.Op {
	n := uint64(4 * elements)
	return coll.Op{Kind: coll.AllReduce, Type: coll.Float32, In: n, Out: n, Timeout: 90 * time.Second}
}

func recorded(t *testing.T, capacity int) *recording {
	t.Helper()
	r := newRecording(capacity)
	t.Cleanup(r.free)
	return r
}

func TestFlightsKeepTheNewest(t *testing.T) {
	r := recorded(t, 5)
	for done := range 13 {
		log := r.Flights()
		if log.Total != uint64(done) || log.Started != uint64(done) || log.Completed != uint64(done) || len(log.Flights) != min(done, 5) {
			t.Fatalf("after %d operations: %d entries of %d, %d started, %d completed", done, len(log.Flights), log.Total, log.Started, log.Completed)
		}
		for i, f := range log.Flights {
			if want := uint64(done - len(log.Flights) + i + 1); f.Number != want || f.Op.Bytes() != 4*want {
				t.Errorf("entry %d is number %d with %d bytes, expected number %d", i, f.Number, f.Op.Bytes(), want)
			}
		}
		r.record(coll.AllReduce, done+1, 1)
	}
}

func TestFlightsOfCollectivesAndP2PShareTheCapacity(t *testing.T) {
	r := recorded(t, 4)
	r.record(coll.AllReduce, 1, 3)
	r.record(coll.Send, 1, 2)
	r.record(coll.Barrier, 4, 1)
	log := r.Flights()
	var got []string
	for _, f := range log.Flights {
		got = append(got, fmt.Sprintf("%v %d", f.Op.Kind, f.Number))
	}
	if want := "[all_reduce 3 send 1 send 2 barrier 4]"; fmt.Sprint(got) != want || log.Total != 6 {
		t.Errorf("%v of %d, expected %s of 6", got, log.Total, want)
	}
	// p2p operations displace collectives from the list, but the numbers of the last collectives stay.
	r.record(coll.Recv, 1, 9)
	if log := r.Flights(); log.Completed != 4 || log.Started != 4 || log.Flights[0].Op.Kind != coll.Recv {
		t.Errorf("%d completed, %d started, oldest %v", log.Completed, log.Started, log.Flights[0].Op.Kind)
	}
}

func TestFlightStates(t *testing.T) {
	r := recorded(t, 10)
	began := time.Now()
	runs := make([]recordedRun, 5)
	for i := range runs {
		runs[i] = r.run(sumOf(i), uint64(i+1))
		runs[i].queue()
	}
	runs[0].start()
	runs[0].finish(-1, true)
	runs[1].start()
	runs[1].finish(-1, false)
	runs[2].finish(-1, false) // the group went down before it began
	runs[3].start()
	recv := r.run(coll.Op{Kind: coll.Recv, Type: coll.Int8, Root: coll.AnySource, Tag: 7, Out: 3}, 0)
	recv.start()
	log := r.Flights()
	want := []struct {
		progress           Progress
		started, completed bool
	}{{Completed, true, true}, {Failed, true, true}, {Failed, false, true}, {Started, true, false}, {Scheduled, false, false}, {Started, true, false}}
	if len(log.Flights) != len(want) || log.Total != 6 || log.Started != 4 || log.Completed != 1 {
		t.Fatalf("%d entries, %+v", len(log.Flights), log)
	}
	for i, w := range want {
		f := log.Flights[i]
		if f.Progress != w.progress || f.Started.IsZero() == w.started || f.Completed.IsZero() == w.completed {
			t.Errorf("entry %d: %v, started %v, completed %v", i, f.Progress, f.Started, f.Completed)
		}
		if i < 5 && (f.Number != uint64(i+1) || f.Op.Bytes() != uint64(4*i) || f.Op.Timeout != 90*time.Second || f.Op.Type != coll.Float32) {
			t.Errorf("entry %d: number %d, %+v", i, f.Number, f.Op)
		}
		if f.Thread == 0 || f.Created.Before(began.Add(-time.Second)) || f.Created.After(time.Now().Add(time.Second)) {
			t.Errorf("entry %d: created %v by thread %d", i, f.Created, f.Thread)
		}
		if !f.Started.IsZero() && f.Started.Before(f.Created) || !f.Completed.IsZero() && f.Completed.Before(f.Started) {
			t.Errorf("entry %d: created %v, started %v, completed %v", i, f.Created, f.Started, f.Completed)
		}
	}
	if op := log.Flights[5].Op; op.Root != coll.AnySource || op.Tag != 7 || op.Bytes() != 3 {
		t.Errorf("%+v", op)
	}
	recv.finish(2, true)
	if f := r.Flights().Flights[5]; f.Op.Root != 2 || f.Number != 1 || f.Progress != Completed {
		t.Errorf("a recv from any source that is complete: from %d, number %d, %v", f.Op.Root, f.Number, f.Progress)
	}
}

// An operation that has not started waits for no rank, so none is named, not even rank 0.
func TestOldestOperationAwaitsNobodyBeforeItStarts(t *testing.T) {
	r := recorded(t, 1)
	run := r.run(sumOf(10), 7)
	run.queue()
	for _, peer := range []int{-1, 0, 2} {
		if peer >= 0 {
			run.await(peer)
		}
		got, found, driven := r.Oldest()
		if !found || driven || got.Sequence != 7 || got.Peer != peer {
			t.Errorf("found %v, driven %v, #%d, peer %d, expected %d", found, driven, got.Sequence, got.Peer, peer)
		}
	}
}

func TestFlightThatWasWrittenOverStaysSo(t *testing.T) {
	r := recorded(t, 3)
	slow := r.run(coll.Op{Kind: coll.Send, Type: coll.Int8, Root: 1, In: 1}, 0)
	slow.start()
	r.record(coll.Send, 1, 3)
	slow.finish(-1, false)
	for _, f := range r.Flights().Flights {
		if f.Progress != Completed || f.Op.Bytes() == 1 {
			t.Errorf("p2p operation %d, %v, %d bytes", f.Number, f.Progress, f.Op.Bytes())
		}
	}
}

// Two reads of a record give the same times, although each read converts them with a newly measured rate of the counter.
func TestFlightTimesAreStable(t *testing.T) {
	r := recorded(t, 1)
	before := time.Now()
	r.record(coll.AllReduce, 1, 1)
	after := time.Now()
	first := r.Flights().Flights[0].Created
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		continue
	}
	second := r.Flights().Flights[0].Created
	const slack = 20 * time.Millisecond // the system may take the processor away between two clocks
	if d := second.Sub(first).Abs(); d > slack {
		t.Errorf("the same moment is read as %v, and later as %v", first, second)
	}
	if second.Before(before.Add(-slack)) || second.After(after.Add(slack)) {
		t.Errorf("created %v, expected a time between %v and %v", second, before, after)
	}
}

// A reader never sees an entry that mixes two operations. Collectives and p2p operations have different writers, as in the
// library. The test fails if the writer does not reset the state of an entry before it overwrites the entry, or if the reader
// does not check the state again after it has read the entry.
func TestFlightsAreWholeWhileTheyAreWritten(t *testing.T) {
	const batch, batches = 1000, 200
	r := recorded(t, 2) // a small capacity, so that entries are overwritten all the time
	var writers sync.WaitGroup
	defer writers.Wait()
	var done atomic.Bool
	for _, kind := range []coll.Kind{coll.AllReduce, coll.Send} {
		writers.Go(func() {
			for i := range batches {
				r.record(kind, 1+i*batch, batch)
			}
		})
	}
	go func() {
		writers.Wait()
		done.Store(true)
	}()
	reads, entries := 0, 0
	for last := false; !last; reads++ {
		last = done.Load()
		log := r.Flights()
		for _, f := range log.Flights {
			entries++
			if f.Op.Bytes() != 4*f.Number || uint64(f.Op.Tag) != f.Number || f.Number > batch*batches {
				t.Fatalf("%v %d has %d bytes and tag %d: it mixes two operations", f.Op.Kind, f.Number, f.Op.Bytes(), f.Op.Tag)
			}
			if f.Progress == Completed == f.Completed.IsZero() || f.Started.Before(f.Created) {
				t.Fatalf("%v %d: %v, created %v, started %v, completed %v", f.Op.Kind, f.Number, f.Progress, f.Created, f.Started, f.Completed)
			}
		}
	}
	if log := r.Flights(); log.Total != 2*batch*batches || log.Completed != batch*batches {
		t.Errorf("%d operations recorded, %d collectives complete", log.Total, log.Completed)
	}
	t.Logf("%d reads, %d entries", reads, entries)
}

func BenchmarkRecorder(b *testing.B) {
	r := newRecording(2000)
	defer r.free()
	r.record(coll.AllReduce, 1, 4000)
	b.ResetTimer()
	r.record(coll.AllReduce, 4001, b.N)
}
