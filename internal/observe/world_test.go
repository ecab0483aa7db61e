package observe_test

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

// In these tests the ranks are goroutines of one process. Each has a group of its own, so the process has all groups.

const (
	opTimeout = time.Minute     // timeout of operations that must succeed
	hangAfter = 2 * time.Minute // time after which await fails the test
)

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(16)
	if err := os.Setenv("SAGECOMM_PROBE", "off"); err != nil { // without the probe, the tables are the same on all machines
		panic(err)
	}
	os.Exit(m.Run())
}

type options map[string]string

// world is one group, with the groups that its ranks see.
type world struct {
	t      *testing.T
	groups []*pgbackend.Group
}

func newWorld(t *testing.T, ranks int, o options) *world {
	t.Helper()
	w := &world{t, make([]*pgbackend.Group, ranks)}
	t.Cleanup(w.destroy)
	store := bootstrap.NewMemStore()
	w.ranks(func(rank int) (err error) {
		w.groups[rank], err = pgbackend.Get().Create(pgbackend.Config{Rank: rank, Size: ranks, Name: t.Name(), Timeout: opTimeout, Store: store, Options: o})
		return err
	})
	return w
}

// ranks runs f for each rank at once.
func (w *world) ranks(f func(rank int) error) {
	w.t.Helper()
	errs := make([]error, len(w.groups))
	var all sync.WaitGroup
	for rank := range w.groups {
		all.Go(func() { errs[rank] = f(rank) })
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	await(w.t, done, "the ranks")
	for rank, err := range errs {
		if err != nil {
			w.t.Errorf("rank %d: %v", rank, err)
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

func (w *world) each(f func(g *pgbackend.Group) error) {
	w.t.Helper()
	w.ranks(func(rank int) error { return f(w.groups[rank]) })
}

func (w *world) destroy() {
	var all sync.WaitGroup
	for _, g := range w.groups {
		if g != nil {
			all.Go(func() { _ = g.Destroy() })
		}
	}
	all.Wait()
}

// view is the group of a rank as observers see it. It stays acquired until the test ends.
func (w *world) view(rank int) observe.Group {
	groups := observers().Groups()
	i := slices.IndexFunc(groups, func(g observe.Group) bool {
		h := g.Header()
		return h.Group == w.t.Name() && h.Rank == rank
	})
	for j, g := range groups {
		if j != i {
			g.Release()
		}
	}
	w.t.Cleanup(groups[i].Release)
	return groups[i]
}

func observers() *observe.Observers { return pgbackend.Get().Observers() }

// await fails the test if done is not closed within hangAfter.
func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(hangAfter):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s hang:\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

func one(b []byte) [][]byte { return [][]byte{b} }

// asError keeps a nil *Failure from becoming an error that is not nil.
func asError(f *coll.Failure) error {
	if f == nil {
		return nil
	}
	return f
}

// sum is a synchronous all_reduce of n float32.
func sum(g *pgbackend.Group, n int) *coll.Failure {
	b := one(make([]byte, 4*n))
	_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, b, b)
	return f
}

// sumAsync issues an asynchronous all_reduce of n float32.
func sumAsync(g *pgbackend.Group, n int) (runner.Work, *coll.Failure) {
	b := one(make([]byte, 4*n))
	return g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true}, b, b)
}

func finish(w runner.Work) *coll.Failure {
	for {
		if done, f := w.Wait(100 * time.Millisecond); done {
			return f
		}
	}
}
