package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// messageOf is the message of a rank in a round of a test.
func messageOf(rank, round, length int) []byte {
	b := make([]byte, length)
	random := rand.New(rand.NewPCG(uint64(rank), uint64(round)))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// exchanged makes an exchange in which the message of each rank has the given length, and compares what came.
func exchanged(g *Group, t topic, round int, length func(rank int) int) error {
	all, f := g.exchange(t, "test", messageOf(g.rank, round, length(g.rank)), opTimeout)
	if f != nil {
		return f
	}
	if len(all) != g.size {
		return fmt.Errorf("%d messages of %d ranks", len(all), g.size)
	}
	for rank, got := range all {
		if want := messageOf(rank, round, length(rank)); got == nil || !bytes.Equal(got, want) {
			return fmt.Errorf("round %d: rank %d sent %d bytes, and %d came that differ", round, rank, len(want), len(got))
		}
	}
	return nil
}

func TestControlExchangeOfAllLengths(t *testing.T) {
	for _, size := range []int{1, 2, 3, 9} {
		w := newWorld(t, size)
		for round, of := range []func(rank int) int{
			func(int) int { return 0 },
			func(int) int { return 1 },
			func(int) int { return controlPart },
			func(int) int { return controlPart + 1 },
			func(rank int) int { return rank * 1000 },
			func(rank int) int { return []int{0, 3*controlPart + 5, 7}[(rank+1)%3] },
			func(rank int) int { return max(0, maxControlMessage-rank*400_000) },
			func(int) int { return 2 },
		} {
			w.each(func(g *Group) error { return exchanged(g, topicIPC, round, of) })
		}
		w.each(func(g *Group) error { return asError(sum(g, 10)) })
		if n := w.groups[0].Sequence(); n != 1 {
			t.Errorf("%d ranks: the first collective has number %d", size, n)
		}
		w.destroy()
	}
}

// A round never overwrites what a peer has not read, whoever is late.
func TestManyControlExchangesWithDelays(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		mine := rand.New(rand.NewPCG(seed, uint64(1+g.rank)))
		common := rand.New(rand.NewPCG(seed, 0)) // all ranks draw the same lengths
		for round := range rounds {
			lengths := []int{common.IntN(3 * controlPart), common.IntN(100), common.IntN(2 * controlPart)}
			if mine.IntN(3) == 0 {
				time.Sleep(time.Duration(mine.IntN(1500)) * time.Microsecond)
			}
			if err := exchanged(g, topicTuning, round, func(rank int) int { return lengths[rank] }); err != nil {
				return err
			}
		}
		return nil
	})
}

// Topics do not wait for each other: each rank begins two of them on two goroutines, in the opposite order, the second one when
// the first one waits.
func TestTopicsAreIndependent(t *testing.T) {
	w := newWorld(t, 2)
	for round := range 20 {
		w.each(func(g *Group) error {
			first, second := topicUniqueID, topicFusion
			if g.rank == 1 {
				first, second = second, first
			}
			ended := make(chan error, 1)
			exchange := func(t topic) error { return exchanged(g, t, round, func(rank int) int { return 1000*rank + int(t) }) }
			go func() { ended <- exchange(first) }()
			for g.entry(first).posted.Load() != uint64(round+1) {
				time.Sleep(100 * time.Microsecond)
			}
			return errors.Join(exchange(second), <-ended)
		})
	}
}

// entry returns this rank's entry of a topic.
func (g *Group) entry(t topic) *controlEntry {
	return &(*controlArea)(g.memory.arena.at(g.memory.control))[t]
}

// Goroutines of one rank that exchange in the same topic take turns.
func TestExchangesOfOneTopicTakeTurns(t *testing.T) {
	const callers, each = 4, 10
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		errs := make([]error, callers)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					if errs[i] = exchanged(g, topicEngine, 0, func(int) int { return controlPart + 1 }); errs[i] != nil {
						return
					}
				}
			})
		}
		all.Wait()
		if got := g.control[topicEngine].round; got != 2*callers*each {
			return fmt.Errorf("%d rounds", got)
		}
		return errors.Join(errs...)
	})
}

// A collective that hangs, and collectives that run, do not hold up an exchange, nor does it hold up them.
func TestControlExchangeBesideCollectives(t *testing.T) {
	w := newWorld(t, 3)
	works := make([]runner.Work, 3)
	w.each(func(g *Group) error {
		if g.rank != 2 { // which comes to the collective later
			var f *coll.Failure
			if works[g.rank], f = sumAsync(g, 100_000); f != nil {
				return f
			}
		}
		if err := exchanged(g, topicEngine, 0, func(rank int) int { return 5000 }); err != nil {
			return err
		}
		if g.rank == 2 {
			return asError(sum(g, 100_000))
		}
		defer works[g.rank].Release()
		return asError(finish(works[g.rank]))
	})
	var ended sync.WaitGroup
	ended.Add(3)
	w.each(func(g *Group) error {
		var f error
		over := make(chan struct{})
		go func() {
			defer ended.Done()
			defer close(over)
			for round := 0; round < 30 && f == nil; round++ {
				f = exchanged(g, topicEngine, round, func(rank int) int { return 5000 })
			}
		}()
		for range 30 {
			if f := sum(g, 10_000); f != nil {
				return f
			}
		}
		<-over
		return f
	})
	ended.Wait()
}

// begun returns when a rank has posted its part of the first round of a topic.
func begun(g *Group, t topic) {
	for g.entry(t).posted.Load() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

func TestControlTimeoutNamesWhoHasNotArrived(t *testing.T) {
	w := newWorld(t, 4)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	list := w.eachFailure(func(g *Group) *coll.Failure {
		switch g.rank {
		case 0: // gives up when ranks 1 and 2 wait
			begun(w.groups[1], topicEngine)
			begun(w.groups[2], topicEngine)
			began := time.Now()
			_, f := g.exchange(topicEngine, "engine of device 0", nil, short)
			if took := time.Since(began); took < short || took > short+5*time.Second {
				t.Errorf("rank 0 waited %v", took)
			}
			return f
		case 3:
			for g.run.FirstCause() == nil {
				time.Sleep(time.Millisecond)
			}
			return g.failed()
		}
		_, f := g.exchange(topicEngine, "engine of device 0", nil, opTimeout)
		return f
	})
	expectScenario(t, "control", "a rank that does not come to an exchange", list)
	expectScenario(t, "control", "a rank that does not come to an exchange", w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }))
	expectScenario(t, "control", "a rank that does not come to an exchange", w.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicFusion, "another", nil, opTimeout)
		return f
	}))
	if f := list[0]; f.Rank != 3 || f.PID != os.Getpid() || f.Sequence != 1 {
		t.Errorf("culprit: %+v", f)
	}
}

// A rank stops between two rounds of one exchange.
func TestControlTimeoutNamesWhoDoesNotGoOn(t *testing.T) {
	w := newWorld(t, 2)
	w.groups[1].posts(topicUniqueID, 1, "id", controlPart+1)
	_, f := w.groups[0].exchange(topicUniqueID, "id", make([]byte, 2*controlPart), short)
	expectScenario(t, "control", "a rank that stops within an exchange", append(w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }), f))
}

// posts writes a round of an exchange as this rank would.
func (g *Group) posts(t topic, round uint64, purpose string, bytes uint64) {
	e := g.entry(t)
	e.bytes.Store(bytes)
	e.purpose.Store(purposeHash(purpose))
	e.named.Store(uint64(copy(e.name[:], purpose)))
	e.posted.Store(round)
}

func TestControlExchangeOfDifferentPurposes(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return exchanged(g, topicFusion, 0, func(int) int { return 9 }) })
	expectScenario(t, "control", "exchanges of different purposes", w.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicFusion, []string{"bytes of a batch", "operations of a batch"}[g.rank], []byte{1}, opTimeout)
		return f
	}))
}

// A rank that has done its part and leaves is missed in the next exchange only.
func TestControlExchangeWithARankThatLeaves(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		if g.rank != 2 {
			begun(w.groups[2], topicIPC)
		}
		if err := exchanged(g, topicIPC, 0, func(int) int { return 9 }); err != nil || g.rank != 2 {
			return err
		}
		return g.Destroy()
	})
	two := &world{t, w.groups[:2]}
	began := time.Now()
	list := two.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicIPC, "handles", nil, opTimeout)
		return f
	})
	measure(t, "knowing that a rank has left", time.Since(began), time.Second)
	for _, f := range list { // which rank looked first is chance
		if err := expect(f, coll.PeerFailure, "Connection closed by peer: rank 2 (host ", "has left the group before its first collective", `in control exchange "handles" (topic IPC); if its log`); err != nil {
			t.Error(err)
		} else if f.Rank != 2 || f.Message != list[0].Message {
			t.Errorf("%+v", f)
		}
	}
	_, f := w.groups[2].exchange(topicIPC, "handles", nil, opTimeout)
	if err := expect(f, coll.Invalid, "the group was destroyed"); err != nil {
		t.Error(err)
	}
}

// A failure, an abort and the end of the group end an exchange that waits.
func TestControlExchangeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(w *world) error
		status coll.Status
		text   string
	}{
		"death":        {func(w *world) error { w.groups[0].peerDied(1); return nil }, coll.PeerFailure, "rank 1 (host "},
		"abort here":   {func(w *world) error { w.groups[0].Abort("enough"); return nil }, coll.Aborted, "aborted by rank 0: enough"},
		"abort there":  {func(w *world) error { w.groups[1].Abort("enough"); return nil }, coll.Aborted, "aborted by rank 1: enough"},
		"destroy here": {func(w *world) error { return w.groups[0].Destroy() }, coll.Aborted, "was destroyed on rank 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			impatient(t, time.Second)
			work, f := sumAsync(w.groups[0], 10) // Destroy waits for it in vain
			if f != nil {
				t.Fatal(f)
			}
			defer work.Release()
			ended := make(chan *coll.Failure, 2)
			var at [2]time.Time
			for i := range 2 { // the second one waits for its turn
				go func() {
					_, f := w.groups[0].exchange(topicEngine, "test", nil, opTimeout)
					at[i] = time.Now()
					ended <- f
				}()
			}
			begun(w.groups[0], topicEngine)
			began := time.Now()
			destroyed := make(chan error, 1)
			go func() { destroyed <- c.end(w) }()
			for range 2 {
				if err := expect(<-ended, c.status, c.text); err != nil {
					t.Error(err)
				}
			}
			for _, at := range at {
				measure(t, "the end", at.Sub(began), 100*time.Millisecond)
			}
			if err := <-destroyed; err != nil {
				t.Error(err)
			}
		})
	}
}

// What a rank cannot have written is said at once. Rank 1 does its part by hand.
func TestGarbageInControlAreas(t *testing.T) {
	for _, c := range []struct {
		scenario string
		rounds   int
		write    func(g *Group, round int)
	}{
		{"a number of posted rounds that cannot be", 1, func(g *Group, _ int) { g.entry(topicEngine).posted.Store(77) }},
		{"a number of taken rounds that cannot be", 1, func(g *Group, _ int) { g.entry(topicEngine).taken.Store(1 << 63) }},
		{"a message longer than any", 1, func(g *Group, _ int) { g.posts(topicEngine, 1, "test", maxControlMessage+1) }},
		{"a length that changes", 2, func(g *Group, round int) { g.posts(topicEngine, uint64(round), "test", 5000+uint64(round)) }},
		{"a hash of no purpose", 1, func(g *Group, _ int) {
			g.entry(topicEngine).purpose.Store(77)
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose longer than any", 1, func(g *Group, _ int) {
			g.posts(topicEngine, 0, "tset", 5)
			g.entry(topicEngine).named.Store(1 << 40)
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose of another hash", 1, func(g *Group, _ int) {
			g.posts(topicEngine, 0, "tset", 5)
			g.entry(topicEngine).name[0] = 'x'
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose that changes", 2, func(g *Group, round int) {
			g.posts(topicEngine, uint64(round), []string{"test", "another"}[round-1], 5000)
		}},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			w := newWorld(t, 2)
			c.write(w.groups[1], 1)
			list := w.eachFailure(func(g *Group) *coll.Failure {
				if g.rank == 0 {
					_, f := g.exchange(topicEngine, "test", make([]byte, 10), opTimeout)
					return f
				}
				for round := 1; round <= c.rounds; round++ {
					if round > 1 {
						c.write(g, round)
					}
					for w.groups[0].entry(topicEngine).taken.Load() < uint64(round) && g.failed() == nil {
						time.Sleep(100 * time.Microsecond)
					}
					if g.failed() == nil {
						g.entry(topicEngine).taken.Store(uint64(round))
					}
				}
				for g.run.FirstCause() == nil {
					time.Sleep(100 * time.Microsecond)
				}
				return g.failed()
			})
			expectScenario(t, "control", c.scenario, list)
		})
	}
}

// What is refused is refused on that rank alone, and nothing has happened.
func TestControlExchangesThatAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	for _, c := range []struct {
		purpose string
		bytes   int
		text    string
	}{
		{"test", maxControlMessage + 1, "sagecomm: control exchange (topic tuning): rank 1: a message of 1048577 bytes, expected at most 1048576"},
		{strings.Repeat("x", maxPurpose+1), 1, "sagecomm: control exchange (topic tuning): rank 1: a purpose of 153 bytes, expected at most 152"},
	} {
		_, f := w.groups[1].exchange(topicTuning, c.purpose, make([]byte, c.bytes), opTimeout)
		if err := expect(f, coll.Invalid); err != nil || f.Message != c.text {
			t.Errorf("%v, %v", err, f)
		}
	}
	w.each(func(g *Group) error {
		_, f := g.exchange(topicTuning, strings.Repeat("x", maxPurpose), nil, opTimeout)
		return asError(f)
	})
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
}

// A panic within an exchange fails the group, and its topic is not used again.
func TestPanicInControlExchange(t *testing.T) {
	w := newWorld(t, 2)
	g := w.groups[0]
	maps := g.maps
	g.maps = nil // as a fault of the library would leave it
	_, f := g.exchange(topicIPC, "test", nil, opTimeout)
	g.maps = maps
	if err := expect(f, coll.Internal, "internal error on rank 0"); err != nil {
		t.Error(err)
	}
	_, f = g.exchange(topicIPC, "test", nil, opTimeout)
	if err := expect(f, coll.Internal, "internal error on rank 0"); err != nil {
		t.Error(err)
	}
}

// Memory of an area that is not used is not taken, and it is given back with the group.
func TestControlAreaOfEachGroup(t *testing.T) {
	newWorld(t, 2).destroy()
	Get().sweep()
	before := inUse(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return exchanged(g, topicEngine, 0, func(int) int { return 100 }) })
	w.destroy()
	Get().sweep()
	if now := inUse(t); now != before {
		t.Errorf("%d bytes in use, before %d", now, before)
	}
	if controlBytes != 5*(192+4096) {
		t.Errorf("a control area has %d bytes: change docs/protocol.md and protocolVersion", controlBytes)
	}
	// A new group finds zeros where an older one has exchanged.
	newWorld(t, 2).each(func(g *Group) error { return exchanged(g, topicEngine, 0, func(int) int { return 100 }) })
}
