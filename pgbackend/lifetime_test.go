package pgbackend

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// Each state can be reached, and from each the group can still be freed.
func TestMovesOfALifetime(t *testing.T) {
	reach := func(from state) map[state]bool {
		seen := map[state]bool{from: true}
		for range moves { // each round reaches another state, or all are reached
			for _, m := range moves {
				if seen[m.from] {
					seen[m.to] = true
				}
			}
		}
		return seen
	}
	for s := meeting; s <= freed; s++ {
		if !reach(meeting)[s] {
			t.Errorf("no group ever is %v", s)
		}
		if !reach(s)[freed] {
			t.Errorf("a group that is %v is never freed", s)
		}
	}
	l := lifetime{state: destroying}
	if l.move(destroying) || l.move(live) || l.now() != destroying {
		t.Error("a group that is being destroyed takes another turn")
	}
	for s, want := range map[state]bool{meeting: false, ready: false, live: true, destroying: true, leaving: false, freed: false} {
		if l := (lifetime{state: s}); l.acquire() != want {
			t.Errorf("a group that is %v lets calls in: %t", s, !want)
		}
	}
}

// The process may end while a group is made, here at the moment when the group is first in the engine's list.
func TestShutdownDuringCreate(t *testing.T) {
	before := pin
	defer func() {
		Get().engine.changed(Get()) // the thread is not inside pin
		pin = before
	}()
	var once atomic.Bool
	var ended sync.WaitGroup
	pin = func(*env.Settings) {
		if once.CompareAndSwap(false, true) {
			ended.Go(Get().Shutdown)
			time.Sleep(50 * time.Millisecond) // Shutdown gets as far as it can
		}
	}
	g, err := Get().Create(Config{Size: 1, Name: t.Name(), Timeout: opTimeout, Store: bootstrap.NewMemStore()})
	require.NoError(t, err)
	ended.Wait()
	if err := g.Destroy(); err == nil {
		t.Error("Shutdown has left the group")
	}
	w := newWorld(t, 2) // the process goes on
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
}

// Making a fifo may take long, here because a program is being compiled. Other groups go on.
func TestFifoThatTakesLongStopsNoOtherGroup(t *testing.T) {
	slow, other := newWorld(t, 2), newWorld(t, 2)
	g := slow.groups[1]
	g.compiling.Lock()
	// The receiver needs a fifo to answer a long send, and nobody but the engine drives it.
	recv, f := g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 0, Async: true}, nil, one(make([]byte, 1<<20)))
	if f != nil {
		g.compiling.Unlock()
		t.Fatal(f)
	}
	defer recv.Release()
	send, f := slow.groups[0].Issue(coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: 1, Async: true}, one(make([]byte, 1<<20)), nil)
	if f != nil {
		g.compiling.Unlock()
		t.Fatal(f)
	}
	defer send.Release()
	var running sync.WaitGroup
	for _, g := range other.groups {
		work, f := sumAsync(g, 1<<18)
		if f != nil {
			t.Error(f)
			continue
		}
		defer work.Release()
		running.Add(1)
		work.OnDone(func(f *coll.Failure) { // nobody else drives it
			if f != nil {
				t.Error(f)
			}
			running.Done()
		})
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("the engine waits")
	}
	g.compiling.Unlock()
	for _, work := range []runner.Work{send, recv} {
		if f := finish(work); f != nil {
			t.Error(f)
		}
	}
}
