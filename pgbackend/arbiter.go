package pgbackend

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
)

// Times of the verdict (docs/protocol.md, section 16, which has what the bounds of contract 3 are made of).
const (
	storeLimit   = 500 * time.Millisecond // a store that has not answered a claim after that is lost
	arbiterTick  = 20 * time.Millisecond  // between two tries to send what a link has not taken, and between two looks for members that left
	settledTick  = 250 * time.Millisecond // between two such looks when the verdict is there
	abortWait    = 50 * time.Millisecond  // how long an abort or a timeout waits for the verdict
	callerWait   = 150 * time.Millisecond // how long a failure does that a thread of a caller declares: Ctrl-C has 200 ms
	mismatchWait = 500 * time.Millisecond // how long a mismatch does, which has 1 s
	deathWait    = 700 * time.Millisecond // how long a death does, which has 3 s, and is noticed after 2 s by default: storeLimit and a round trip on each link of a path
	flushLimit   = 500 * time.Millisecond // how long Destroy waits until frames of the verdict are sent
	closeLimit   = 500 * time.Millisecond // how long close waits for a link that does not return
)

// verdictWait returns how long who declares a failure waits for the verdict before the own record is raised.
func verdictWait(s coll.Status) time.Duration {
	switch s {
	case coll.Aborted, coll.Timeout:
		return abortWait
	case coll.PeerFailure:
		return deathWait
	case coll.Mismatch:
		return mismatchWait
	default:
		return callerWait
	}
}

// memberLink sends frames to the process of a member. [tcp.Link] is one.
type memberLink interface {
	// TrySend sends a frame on a connection and does not wait. It reports false if the connection takes nothing now; an
	// error means that the link is lost. Of a frame that it takes, a part may stay behind.
	TrySend(on int, h *tcp.Header, payload ...[]byte) (taken bool, err error)
	// TryFlush sends what has stayed behind and does not wait. It reports whether all is sent.
	TryFlush(on int) (sent bool, err error)
	// AfterSent calls a function when all is sent that was taken until now, where a goroutine sends. Else it does nothing.
	AfterSent(on int, call func())
	// Break ends the link because of an error of this process. It does not wait. The arbiter hears of that by linkLost.
	Break(why error)
}

// servedGroup is a group of this process.
type servedGroup interface {
	// takeVerdict is called with the verdict. Any goroutine may call it, several at the same time; the first call counts.
	takeVerdict(first *coll.Failure)
	// Panicked is called if there will be no verdict, after a panic of the arbiter.
	Panicked(r any) *coll.Failure
	// haveLeft reports whether ranks have all said goodbye, as far as the group has its memory to look. Else it is not
	// known.
	haveLeft(ranks []int) (left, known bool)
	// linkWanted is called when a member wants a link to this process. It waits for nothing.
	linkWanted(member int)
}

// arbiterConfig describes a group over several hosts to its arbiter.
type arbiterConfig struct {
	number uint64       // of the group in frames
	size   int          // ranks
	lowest []int        // by member: its lowest rank, by which frames name it
	self   int          // the member that this process is
	links  []memberLink // by member; nil for self, and for members that this one does not watch

	watched func(i, j int) bool // reports whether two members watch each other; nil: all do
	store   bootstrap.Claimer   // nil: the store does not last
	key     string              // of the first cause in the store, to which the arbiter adds the number of the group

	// left reports whether all ranks of a member have said goodbye. It waits for nothing. It is called until close
	// returns, also when a group of this process has left and its memory is gone: it must not use that.
	left func(member int) bool

	closed func() // called once, behind the end of the arbiter; may be nil

	info func(format string, args ...any) // logs; may be nil
}

// arbiter is a member of the verdict on a group over several hosts: it finds the first cause of its failure, the same
// on all survivors. A process has one for each such group, whatever the number of its ranks in the group.
//
// One goroutine owns the [verdict.Member]. What happens is appended to a queue, so nobody waits for a claim or a link
// but who asks for that: receivers of frames, and those who notice that a link is lost, never do.
type arbiter struct {
	arbiterConfig
	memberOf map[int]int // by lowest rank

	ending sync.Once // gives the store back, and calls closed

	mu     sync.Mutex
	queue  []func()
	came   []int // by member: frames in the queue that have come over its link
	over   bool
	groups []servedGroup
	awaits int           // ranks of this process that are to be served
	bell   chan struct{} // rings when there is something in the queue, or over is set
	done   chan struct{} // closed when the goroutine has ended

	cause   atomic.Pointer[coll.Failure]
	decided chan struct{} // closed when cause is there

	// The goroutine's own:
	member  *verdict.Member
	known   []bool          // by member: it is known to have left
	backlog []backlog       // by member: what its link has not taken yet
	flushed []chan struct{} // to be closed when there is nothing to send and no verdict to come
}

// newArbiter returns an arbiter that serves no group yet. It takes the store over. linkLost is called for links that
// were lost before as well.
func newArbiter(c arbiterConfig) *arbiter {
	members := len(c.lowest)
	c.key = fmt.Sprintf("%s/%x", c.key, c.number) // a store may hold causes of earlier jobs
	a := &arbiter{arbiterConfig: c, memberOf: map[int]int{}, bell: make(chan struct{}, 1), done: make(chan struct{}), decided: make(chan struct{}),
		member: verdict.New(c.self, members, c.watched), came: make([]int, members), known: make([]bool, members), backlog: make([]backlog, members)}
	for member, rank := range c.lowest {
		a.memberOf[rank] = member
	}
	if a.store == nil {
		a.member.StoreLost()
	}
	go a.run()
	return a
}

// expect takes note of one more rank of this process, which will be served, or leave.
func (a *arbiter) expect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaits++
}

// serve adds a group of this process, which gets the verdict, also one that is there already.
// Requires: calls may enter the group, and nobody destroys it meanwhile.
func (a *arbiter) serve(g servedGroup) {
	a.mu.Lock()
	a.groups = append(a.groups, g)
	a.awaits--
	first := a.cause.Load()
	a.mu.Unlock()
	if first != nil {
		go g.takeVerdict(first)
	}
}

// leave takes a group out, which was served or will not be. When the last one has left, the arbiter ends.
func (a *arbiter) leave(g servedGroup) {
	a.mu.Lock()
	before := len(a.groups)
	a.groups = slices.DeleteFunc(a.groups, func(other servedGroup) bool { return other == g })
	if len(a.groups) == before {
		a.awaits--
	}
	last := len(a.groups) == 0 && a.awaits <= 0
	a.mu.Unlock()
	if last {
		a.close()
	}
}

// close ends the arbiter. What has not been sent is not sent any more; a claim goes on, and its answer is dropped.
// Where a link does not return, the goroutine ends when it does.
func (a *arbiter) close() {
	a.mu.Lock()
	a.over, a.queue = true, nil
	a.mu.Unlock()
	a.ring()
	select {
	case <-a.done:
	case <-time.After(closeLimit):
	}
	a.ending.Do(func() {
		if a.store != nil {
			a.store.Release()
		}
		if a.closed != nil {
			a.closed()
		}
	})
}

// knowsLeft reports whether ranks have said goodbye, as a group of this process knows whose memory is there.
func (a *arbiter) knowsLeft(ranks []int) bool {
	a.mu.Lock()
	groups := slices.Clone(a.groups)
	a.mu.Unlock()
	for _, g := range groups {
		if left, known := g.haveLeft(ranks); known {
			return left
		}
	}
	return false
}

// declare takes a failure of this process's own, waits for the verdict for a while, and returns it, or nil. Nobody
// waits any more once the group has a cause of its own, when `caused` is closed.
func (a *arbiter) declare(f *coll.Failure, wait time.Duration, caused <-chan struct{}) *coll.Failure {
	record := encodeRecord(f, a.size)
	a.push(func() { a.member.Declare(record) })
	select {
	case <-a.decided:
	case <-a.done:
	case <-caused:
	case <-time.After(wait):
	}
	return a.cause.Load()
}

// take takes a frame of the verdict that has come over the link to a member. It does not wait. An error says what no
// member sends: the link is to be ended.
func (a *arbiter) take(over int, h *tcp.Header, payload []byte) error {
	f, err := a.read(h, payload)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.ring()
	defer a.mu.Unlock()
	if a.over {
		return nil
	}
	if a.came[over] == a.mostWaiting() {
		return fmt.Errorf("%d frames of the verdict on group %x wait, more than %d members send", a.came[over], a.number, len(a.lowest))
	}
	a.came[over]++
	a.queue = append(a.queue, func() {
		a.mu.Lock()
		a.came[over]--
		a.mu.Unlock()
		_ = a.member.Take(f, over) // it checks what read has checked
	})
	return nil
}

// linkLost takes note that the link to a member is lost. Frames that have come over it were taken before.
func (a *arbiter) linkLost(member int) {
	a.push(func() {
		a.backlog[member] = backlog{}
		if a.watched != nil && !a.known[member] && a.left(member) { // then it is no news
			a.known[member] = true
			a.member.Left(member)
		}
		a.member.LinkLost(member)
	})
}

// flush returns when there is nothing to send and no verdict to come, but after the limit at the latest. A rank that
// leaves the group calls it, so that what it has declared does not leave with it.
func (a *arbiter) flush(limit time.Duration) {
	flushed := make(chan struct{})
	a.push(func() { a.flushed = append(a.flushed, flushed) })
	select {
	case <-flushed:
	case <-a.done:
	case <-time.After(limit):
	}
}

// push appends to the queue. Nothing is run any more once the arbiter is closed.
func (a *arbiter) push(f func()) {
	a.mu.Lock()
	if !a.over {
		a.queue = append(a.queue, f)
	}
	a.mu.Unlock()
	a.ring()
}

func (a *arbiter) ring() {
	select {
	case a.bell <- struct{}{}:
	default:
	}
}

// run is the goroutine.
func (a *arbiter) run() {
	defer func() {
		if r := recover(); r != nil {
			a.panicked(r)
		}
	}()
	defer close(a.done)
	for a.step() {
		var tick <-chan time.Time
		switch {
		case a.member.Pending() || a.unsent():
			tick = time.After(arbiterTick)
		case a.member.Unsettled():
			tick = time.After(settledTick)
		}
		select {
		case <-a.bell:
		case <-tick:
		}
	}
}

// panicked fails the groups after a panic of the goroutine, and ends the links, since other members would wait for
// answers of this one.
func (a *arbiter) panicked(r any) {
	a.mu.Lock()
	a.over, a.queue = true, nil
	groups := slices.Clone(a.groups)
	a.mu.Unlock()
	for _, l := range a.links {
		if l != nil {
			l.Break(fmt.Errorf("internal error in the verdict on group %x: %v", a.number, r))
		}
	}
	for _, g := range groups {
		func() {
			defer recoverFrom("the failure of a group")
			g.Panicked(r)
		}()
	}
}

// step does what is to be done now. It reports false if the arbiter is closed.
func (a *arbiter) step() bool {
	a.mu.Lock()
	todo, over := a.queue, a.over
	a.queue = nil
	a.mu.Unlock()
	if over {
		return false
	}
	for _, f := range todo { // thousands where hosts do not reach each other any more
		f()
		a.keep(a.member.Sends())
	}
	a.act()
	if a.member.Unsettled() || a.unsent() { // behind what has come: members that left may have sent it
		a.look()
	}
	a.send()
	if !a.member.Pending() && !a.unsent() {
		for _, flushed := range a.flushed {
			close(flushed)
		}
		a.flushed = nil
	}
	return true
}

// look looks for members that have left, among those that this one watches: what such a member has sent for the verdict
// comes over the same link, in front of its farewell. They read nothing any more.
func (a *arbiter) look() {
	for j := range a.known {
		if a.links[j] != nil && !a.known[j] && a.left(j) {
			a.known[j], a.backlog[j] = true, backlog{}
			a.member.Left(j)
		}
	}
	a.act()
}

// act does what the member has to do.
func (a *arbiter) act() {
	next := a.member.Next()
	if next.Verdict != "" {
		a.decide(next.Verdict)
	}
	a.keep(next.Send)
	a.wanted(next.Wanted)
	if next.Claim != "" {
		a.claim(next.Claim)
	}
}

// decide makes a record the first cause.
func (a *arbiter) decide(record string) {
	first, err := decodeRecord(record, a.size)
	if err != nil {
		panic(err) // read and answer take no such record
	}
	a.mu.Lock()
	a.cause.Store(first)
	groups := slices.Clone(a.groups)
	a.mu.Unlock()
	close(a.decided)
	for _, g := range groups {
		go g.takeVerdict(first)
	}
}

// claim asks the store, which may never answer.
func (a *arbiter) claim(record string) {
	answered := false // the goroutine's own
	limit := time.AfterFunc(storeLimit, func() {
		a.push(func() {
			if !answered {
				a.member.StoreLost()
			}
		})
	})
	go func() {
		value, err := a.ask(record)
		limit.Stop()
		if err != nil && a.info != nil {
			a.info("the store takes no part in the decision about the first cause of a failure: %v", err)
		}
		a.push(func() {
			answered = true
			if err != nil {
				a.member.StoreLost()
			} else {
				a.member.Answer(a.answer(value))
			}
		})
	}()
}

// ask makes the claim. A panic of the store is an error of it.
func (a *arbiter) ask(record string) (value []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault(r)
		}
	}()
	return a.store.Claim(a.key, []byte(record))
}
