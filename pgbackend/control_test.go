package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
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

// Topics do not wait for each other: each rank begins two of them on two goroutines, in the opposite order, the second
// one when the first one waits.
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
	if controlBytes != 6*(192+4096) {
		t.Errorf("a control area has %d bytes: change docs/protocol.md and protocolVersion", controlBytes)
	}
	// A new group finds zeros where an older one has exchanged.
	newWorld(t, 2).each(func(g *Group) error { return exchanged(g, topicEngine, 0, func(int) int { return 100 }) })
}
