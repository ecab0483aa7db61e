package pgbackend

import (
	"sync"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

// news records the cause of each call of a failure callback.
type news struct {
	mu   sync.Mutex
	list []*coll.Failure
	came chan struct{} // closed by the first
}

func newNews() *news { return &news{came: make(chan struct{})} }

func (n *news) tell(f *coll.Failure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.list = append(n.list, f); len(n.list) == 1 {
		close(n.came)
	}
}

// only waits for the first call, checks that there is no other, and returns its cause.
func (n *news) only(t *testing.T) *coll.Failure {
	t.Helper()
	select {
	case <-n.came:
	case <-time.After(hangAfter):
		t.Fatal("nothing was told")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) != 1 {
		t.Fatalf("told %d times: %v", len(n.list), n.list)
	}
	return n.list[0]
}

func setHeadStart(t *testing.T, d time.Duration) {
	before := headStart
	headStart = d
	t.Cleanup(func() { headStart = before })
}

// No rank is in a call: the other ranks learn of the failure through the engine.
func TestFailureIsToldToIdleRanks(t *testing.T) {
	w := newWorld(t, 3)
	all := make([]*news, 3)
	for i, g := range w.groups {
		all[i] = newNews()
		if f := g.OnFailure(all[i].tell); f != nil {
			t.Fatal(f)
		}
	}
	w.groups[1].Abort("for the test")
	for rank, n := range all {
		if err := expect(n.only(t), coll.Aborted, "aborted by rank 1: for the test"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	// Destroying a failed group calls no callback again.
	w.destroy()
	for _, n := range all {
		n.only(t)
	}
}

func TestFailureIsToldBeforeOperationsRaiseIt(t *testing.T) {
	setHeadStart(t, hangAfter)
	w := newWorld(t, 2)
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	g := w.groups[0]
	if f := g.OnFailure(func(*coll.Failure) {
		time.Sleep(50 * time.Millisecond) // without the head start the operation ends meanwhile
		note("told")
	}); f != nil {
		t.Fatal(f)
	}
	work, f := sumAsync(g, 10)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	ended := make(chan struct{})
	work.OnDone(func(*coll.Failure) {
		note("raised")
		close(ended)
	})
	w.groups[1].Abort("for the test")
	<-ended
	mu.Lock()
	defer mu.Unlock()
	if len(order) != 2 || order[0] != "told" {
		t.Errorf("order: %v", order)
	}
}

// Who finds another fault meanwhile goes on when the group is down, which follows the callback: an engine reports that
// an operation of a device has ended as soon as it has declared the fault.
func TestASecondFailureReturnsWhenTheGroupIsDown(t *testing.T) {
	setHeadStart(t, hangAfter)
	w := newWorld(t, 2)
	g := w.groups[0]
	began, goOn, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	if f := g.OnFailure(func(*coll.Failure) {
		close(began)
		<-goOn
	}); f != nil {
		t.Fatal(f)
	}
	go g.Abort("for the test")
	<-began
	go func() {
		defer close(returned)
		g.Abort("for the test, again")
	}()
	select {
	case <-returned:
		t.Error("returned before the group was down")
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	<-returned
}

func TestABlockedCallbackDelaysNoFailure(t *testing.T) {
	w := newWorld(t, 2)
	forGood := make(chan struct{})
	defer close(forGood)
	for _, g := range w.groups {
		if f := g.OnFailure(func(*coll.Failure) { <-forGood }); f != nil {
			t.Fatal(f)
		}
	}
	work, f := sumAsync(w.groups[0], 10)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	w.groups[1].Abort("for the test")
	if err := expect(finish(work), coll.Aborted); err != nil {
		t.Error(err)
	}
	w.destroy() // Destroy does not wait for the callback either
}

func TestDestroyCallsTheFailureCallback(t *testing.T) {
	w := newWorld(t, 2)
	n := newNews()
	if f := w.groups[0].OnFailure(n.tell); f != nil {
		t.Fatal(f)
	}
	w.destroy()
	if f := n.only(t); f != nil {
		t.Errorf("told %v", f)
	}
	if err := expect(w.groups[0].OnFailure(n.tell), coll.Invalid, "destroyed"); err != nil {
		t.Error(err)
	}
	n.only(t)
}

func TestWhoAsksAfterTheFailureIsAnsweredAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.groups[0].Abort("for the test")
	for _, g := range w.groups {
		never := func(f *coll.Failure) { t.Errorf("told %v", f) }
		if err := expect(g.OnFailure(never), coll.Aborted, "for the test"); err != nil {
			t.Error(err)
		}
	}
	w.destroy()
}

func TestFailureIsToldToAllWhoAsked(t *testing.T) {
	w := newWorld(t, 1)
	a, b := newNews(), newNews()
	for _, n := range []*news{a, b} {
		if f := w.groups[0].OnFailure(n.tell); f != nil {
			t.Fatal(f)
		}
	}
	w.groups[0].Abort("for the test")
	if a.only(t) != b.only(t) {
		t.Error("told differently")
	}
}
