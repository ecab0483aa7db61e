package pgbackend

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// In these tests ranks are goroutines of one process, each with a group of its own, in the one arena of the process.

const (
	opTimeout = 60 * time.Second // of operations that are to succeed
	hangAfter = 2 * time.Minute  // after which a test fails and prints where it hangs
)

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(16)                                     // a processor for every rank that waits in C, whatever the machine has
	if err := os.Setenv("SAGECOMM_PROBE", "off"); err != nil { // tables that are the same on all machines
		panic(err)
	}
	if dir := os.Getenv(otherProcess); dir != "" { // this is rank 1 of TestControlExchangeBetweenProcesses
		os.Exit(rankOfAnotherProcess(dir))
	}
	if orders := os.Getenv(manyProcesses); orders != "" {
		os.Exit(manyRanksMain(orders))
	}
	os.Exit(m.Run())
}

// ranksOf runs f once for each rank, each on a thread of its own, and returns when all have.
func ranksOf(t *testing.T, n int, f func(rank int) error) {
	t.Helper()
	errs := make([]error, n)
	var running sync.WaitGroup
	for rank := range n {
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[rank] = f(rank)
		})
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(hangAfter):
		stacks := make([]byte, 1<<20)
		t.Fatalf("the ranks hang:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// world is one group of n ranks.
type world struct {
	t      *testing.T
	groups []*Group
}

// options are the options of a group on one rank.
type options map[string]string

// tryWorld creates a group and returns the error of each rank.
func tryWorld(t *testing.T, n int, timeout time.Duration, of func(rank int) options, wires ...*wire) (*world, []error) {
	t.Helper()
	w := &world{t, make([]*Group, n)}
	errs := make([]error, n)
	store := bootstrap.NewMemStore()
	for _, x := range wires {
		t.Cleanup(x.close)
	}
	ranksOf(t, n, func(rank int) error {
		var o options
		if of != nil {
			o = of(rank)
		}
		config := Config{Rank: rank, Size: n, Name: t.Name(), Timeout: timeout, Store: store, Lasting: store, Options: o}
		if len(wires) > 0 {
			config.Store = wiredStore{store, wires, rank}
		}
		w.groups[rank], errs[rank] = Get().Create(config)
		return nil
	})
	t.Cleanup(w.destroy)
	return w, errs
}

func newWorld(t *testing.T, n int) *world {
	t.Helper()
	return newWorldWith(t, n, opTimeout, nil)
}

func newWorldWith(t *testing.T, n int, timeout time.Duration, o options) *world {
	t.Helper()
	w, errs := tryWorld(t, n, timeout, func(int) options { return o })
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	return w
}

// destroy destroys the groups of all ranks that are not destroyed yet.
func (w *world) destroy() {
	var running sync.WaitGroup
	for _, g := range w.groups {
		if g != nil {
			running.Go(func() { _ = g.Destroy() })
		}
	}
	running.Wait()
}

// each runs f on every rank.
func (w *world) each(f func(g *Group) error) {
	w.t.Helper()
	ranksOf(w.t, len(w.groups), func(rank int) error { return f(w.groups[rank]) })
}

// eachFailure runs f on every rank and returns its results.
func (w *world) eachFailure(f func(g *Group) *coll.Failure) []*coll.Failure {
	w.t.Helper()
	list := make([]*coll.Failure, len(w.groups))
	w.each(func(g *Group) error {
		list[g.rank] = f(g)
		return nil
	})
	return list
}

// one is a buffer of one segment.
func one(b []byte) [][]byte { return [][]byte{b} }

// sum is a synchronous all_reduce of n float32.
func sum(g *Group, n int) *coll.Failure {
	b := one(make([]byte, 4*n))
	_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, b, b)
	return f
}

// sumAsync issues an asynchronous all_reduce of n float32.
func sumAsync(g *Group, n int) (runner.Work, *coll.Failure) {
	b := one(make([]byte, 4*n))
	return g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true}, b, b)
}

// finish waits for a work.
func finish(w runner.Work) *coll.Failure {
	for {
		if done, f := w.Wait(100 * time.Millisecond); done {
			return f
		}
	}
}

// measure logs if something took longer than it does on a machine that is not overloaded. Three times as long is a
// failure.
func measure(t *testing.T, what string, took, bound time.Duration) {
	t.Helper()
	if took > 3*bound {
		t.Errorf("%s took %v, the bound is %v", what, took, bound)
	} else if took > bound {
		t.Logf("%s took %v, the bound is %v", what, took, bound)
	}
}

// asError keeps a nil *Failure from becoming an error that is not nil.
func asError(f *coll.Failure) error {
	if f == nil {
		return nil
	}
	return f
}

// expect checks a failure: its status and parts of its text.
func expect(f *coll.Failure, status coll.Status, parts ...string) error {
	if f == nil {
		return fmt.Errorf("it succeeded, expected %v with %q", status, parts)
	}
	if f.Status != status {
		return fmt.Errorf("%v: %q, expected %v", f.Status, f.Message, status)
	}
	for _, p := range parts {
		if !strings.Contains(f.Message, p) {
			return fmt.Errorf("%q is not in %q", p, f.Message)
		}
	}
	return nil
}

// expectAll checks that all ranks have the same failure.
func expectAll(t *testing.T, list []*coll.Failure, status coll.Status, parts ...string) {
	t.Helper()
	for rank, f := range list {
		if err := expect(f, status, parts...); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		} else if f.Message != list[0].Message {
			t.Errorf("rank %d says %q, rank 0 %q", rank, f.Message, list[0].Message)
		}
	}
}

// inUse returns the bytes of shared memory that this process holds.
func inUse(t *testing.T) int64 {
	t.Helper()
	p := Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.memory.shared == nil {
		return 0
	}
	return p.memory.shared.InUse()
}
