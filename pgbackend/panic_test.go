package pgbackend

import (
	"runtime"
	"sync/atomic"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// A panic on the progress thread takes down the groups that it drives. Groups that are made afterwards work.
func TestPanicOfTheProgressThread(t *testing.T) {
	w := newWorld(t, 2)
	before := pin
	var once atomic.Bool
	pin = func(s *env.Settings) {
		if once.CompareAndSwap(false, true) {
			panic("a fault for the test")
		}
	}
	defer func() {
		Get().engine.changed(Get()) // the thread is not inside pin
		pin = before
	}()
	Get().engine.changed(Get())
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.Internal, "a fault for the test")
	next := newWorld(t, 2)
	async := make([]runner.Work, 2)
	next.each(func(g *Group) error {
		var f *coll.Failure
		async[g.rank], f = sumAsync(g, 100_000)
		return asError(f)
	})
	next.each(func(g *Group) error { return asError(finish(async[g.rank])) })
}

// A panic on the goroutine that learns of a death does the same.
func TestPanicOfTheWatch(t *testing.T) {
	w := newWorld(t, 2)
	g := w.groups[0]
	before := g.members
	g.members = nil // what cannot be
	g.peerDied(1)
	g.members = before
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.Internal, "internal error on rank 0")
}

// What may run until the process ends, as the release of tokens does, keeps no group, and its panics end no process.
func TestGuardThatOutlivesItsGroup(t *testing.T) {
	g := &Group{}
	group, guard := weak.Make(g), g.lastingGuard()
	runtime.GC()
	require.Nil(t, group.Value())
	guard(func() { panic("a fault for the test") })
}

// A panic of an observer harms no group.
func TestPanicOfWhatOnlyShows(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, options{"fr_dump": t.TempDir() + "/rank_"})
	g := w.groups[0]
	before := g.members
	g.members = nil // what cannot be
	if text := Get().observers.Status(); text != nil {
		t.Errorf("the status is %q", text)
	}
	g.members = before
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	if text := Get().observers.Status(); len(text) == 0 {
		t.Error("no status afterwards")
	}
}
