package pgbackend

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file holds the wait for issued operations at the end of a group.

// destroyTimeout bounds how long the end of a group waits for operations on host memory, because peers may never join
// them, and for all operations where the wait is brief. Tests change it.
var destroyTimeout = 2 * time.Second

// settleGrace is how much later than their timeout operations on devices are given up. Each fails by its timeout
// before, with an error that names what it has waited for, unless its stream is late. Tests change it.
var settleGrace = time.Second

// The pause between two looks at the operations is a hundredth of the time waited, within these bounds.
const (
	settlePause = 200 * time.Microsecond
	settleLong  = 5 * time.Millisecond
)

// When a wait asks ranks of other hosts how far they and their streams are: ever more seldom, because all ranks of the
// group may ask all others.
const (
	settleAsks   = 100 * time.Millisecond
	settleSeldom = time.Second
)

// Wait is how long the end of a group waits for issued operations.
type Wait int

// The values are those of SAGECOMM_SETTLE_* in the C ABI.
const (
	WaitFull  Wait = iota // those on devices, and all of a group that met at a unique id, have as long as they may take
	WaitBrief             // all have destroyTimeout
	WaitNone              // those that are left are given up at once
)

// settling is a wait for the issued operations at the end of a group. Several threads may use it at the same time.
type settling struct {
	mu       sync.Mutex
	began    time.Time     // 0: nobody has waited yet
	brief    time.Time     // when the first brief wait began; 0: none has
	limit    time.Duration // of operations that do not have as long as they may take
	since    time.Time     // begin of that limit
	carried  time.Time     // when data of this group were last seen to come from other hosts or to go there
	moved    uint64        // how much of them
	quiet    time.Time     // since when operations on devices have not gone on
	progress progress
	asked    time.Time
	pause    time.Duration // until ranks of other hosts are asked again
	askedAll bool

	namesAll   bool          // the failure is asked for also where no operation on a device is left
	complete   bool          // a wait has found all operations complete
	gaveUp     string        // which operations were given up, in words; "": none
	unfinished *coll.Failure // the same as a failure; nil: nobody asks for it
}

// Settle waits for the issued operations before Destroy, for a slice at most, for callers that look for signals
// meanwhile. It reports whether it has to be called again. Behind it, Destroy gives up at once what is left.
func (g *Group) Settle(slice time.Duration, wait Wait) (again bool, f *coll.Failure) {
	if !g.life.acquire() {
		return false, destroyed(g.name)
	}
	defer g.life.release()
	until := time.Now().Add(slice)
	for !g.settling.isOver(g, wait, true) {
		if !time.Now().Before(until) {
			return true, nil
		}
		g.settling.rest()
	}
	return false, nil
}

// Finish waits until the issued operations are complete, as long as Destroy does, for callers that ask how they ended
// before they destroy the group. It returns the failure of the group if operations or control exchanges of this rank
// have ended with it, or that of an operation that is not complete. The failure of a group of which this rank needed
// nothing is nil, as with NCCL.
func (g *Group) Finish() *coll.Failure {
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	s := settling{namesAll: true} // Destroy waits anew for operations that are issued later
	for !s.isOver(g, WaitFull, true) {
		s.rest()
	}
	if s.gaveUp != "" { // Destroy does not wait for them again
		g.settling.mu.Lock()
		g.settling.began, g.settling.gaveUp, g.settling.unfinished = s.began, s.gaveUp, s.unfinished
		g.settling.mu.Unlock()
	}
	f := g.failed()
	if f == nil {
		return s.unfinished
	}
	g.goDown(f, false)
	for end := time.Now().Add(settleGrace); !g.hasLost() && g.unfinished(); time.Sleep(settlePause) {
		if time.Now().After(end) {
			return f
		}
		g.down() // a caller that held a lock when the group went down may leave operations unfinished
	}
	if !g.hasLost() {
		return nil
	}
	return f
}

// hasLost reports whether operations or control exchanges of this rank have ended with the failure of the group.
func (g *Group) hasLost() bool {
	lost := g.lostExchange.Load()
	for _, l := range g.lanes() {
		lost = lost || l.run.HasFailed()
	}
	return lost
}

// settle waits as destroy does. It returns which operations it gave up, in words and as a failure.
// Requires: this goroutine has made the group one that is being destroyed.
func (g *Group) settle(patient bool) (gaveUp string, f *coll.Failure) {
	s := &g.settling
	wait := WaitBrief // counted anew where another thread waits in slices
	if patient {
		wait = s.behindSlices()
	}
	for !s.isOver(g, wait, patient) {
		s.rest()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gaveUp == "" || g.cause.Load() == nil && !g.unfinished() { // complete since they were given up
		return "", nil
	}
	return s.gaveUp, s.unfinished
}

// behindSlices returns how long Destroy waits. Where Settle has been called it waits no longer, except for operations
// that were issued after all had been complete.
func (s *settling) behindSlices() Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.began.IsZero():
		return WaitFull
	case s.complete:
		return WaitBrief
	default:
		return WaitNone
	}
}

// rest sleeps between two looks at the operations.
func (s *settling) rest() {
	s.mu.Lock()
	waited := time.Since(s.began)
	s.mu.Unlock()
	time.Sleep(min(max(settlePause, waited/100), settleLong))
}

// isOver looks at the operations once and reports whether the wait is over: they are complete, the group has failed, or
// they are given up. tells: somebody asks for the failure of operations on devices that are given up. Requires: the
// memory of the group stays.
func (s *settling) isOver(g *Group, wait Wait, tells bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.began.IsZero() {
		s.began, s.since, s.quiet, s.asked = now, now, now, now
		s.limit, s.moved, s.progress, s.pause = g.process.destroyLimit(), g.movedBetweenHosts(), g.progress(), settleAsks
	}
	if s.gaveUp != "" || g.cause.Load() != nil {
		return true
	}
	if !g.unfinished() {
		s.complete = true
		return true
	}
	if wait == WaitNone { // the peers are not at fault, so the next groups have all their time
		s.gaveUp = "for which this rank waits no longer"
		return true
	}
	if wait == WaitBrief && s.brief.IsZero() {
		s.brief = now
	}
	if g.mourns() || s.leavesTime(g, wait, now) || s.carries(g, now) || wait == WaitFull && s.asksAll(g) {
		return false
	}
	s.giveUp(g, time.Since(s.began), tells)
	return true
}

// leavesTime reports whether the operations still have time.
func (s *settling) leavesTime(g *Group, wait Wait, now time.Time) bool {
	if wait == WaitBrief {
		return now.Sub(later(s.brief, s.carried)) < s.limit
	}
	if now.Sub(s.asked) >= s.pause {
		g.question(g.unreached()...)
		s.asked, s.pause = now, min(2*s.pause, settleSeldom)
	}
	if s.progress.goesOn(g.progress()) {
		s.quiet, s.askedAll = now, false
	}
	if g.birth == nil && !g.onDevices() && !g.reports() {
		return now.Sub(later(s.since, s.carried)) < s.limit
	}
	s.since = now
	waited := now.Sub(later(s.quiet, s.carried))
	if waited < g.timeout()+settleGrace {
		return true
	}
	return g.ownTimeoutRuns(waited)
}

// ownTimeoutRuns reports whether the oldest operation on a device has a timeout of its own that is longer than the
// group's. A thread that drives the operation looks at its timeout, which runs once the stream of this rank has reached
// it.
func (g *Group) ownTimeoutRuns(waited time.Duration) bool {
	d := g.device.Load()
	if d == nil {
		return false
	}
	t, found, driven := d.run.Oldest()
	if driven {
		mine, called := d.run.LastIn(runner.DeviceLane, g.rank)
		return called && d.run.Reached(g.rank) >= mine.Sequence && !g.streamIsLate()
	}
	return found && waited < t.Timeout+settleGrace
}

// carries reports whether data have come from other hosts or gone there since the last time that it was asked: a
// network may be slow.
func (s *settling) carries(g *Group, now time.Time) bool {
	moved := g.movedBetweenHosts()
	if moved == s.moved {
		return false
	}
	s.carried, s.moved = now, moved
	return true
}

// asksAll asks ranks of other hosts once more, and reports whether it has: what they have called may be news.
func (s *settling) asksAll(g *Group) bool {
	unknown := g.unreached()
	if s.askedAll || len(unknown) == 0 {
		return false
	}
	g.ask(stateLimit, unknown...)
	s.askedAll = true
	return true
}

// giveUp gives the operations up that are left.
func (s *settling) giveUp(g *Group, waited time.Duration, tells bool) {
	s.gaveUp = fmt.Sprintf("that peers have not joined for %v", waited.Round(min(s.limit, time.Second)/10))
	if g.streamIsLate() {
		s.gaveUp = fmt.Sprintf("that the stream of a device has not reached or not ended for %v", waited.Round(time.Second/10))
	}
	if s.namesAll || tells && g.onDevices() {
		s.unfinished = g.unfinishedHere(s.gaveUp, waited)
	}
	g.process.destroyTimedOut()
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// mourns reports whether the wait is to go on because a peer has died that had not left: the group is about to fail
// with that. Where the watch over that process has found nothing unfinished, and there is now, it makes the group fail.
func (g *Group) mourns() bool {
	if g.mourning.Load() > 0 {
		return true
	}
	for _, rank := range g.life.dead() {
		if _, left := g.run.LastCall(rank); left { // operations that need it notice its absence themselves
			continue
		}
		g.mourning.Add(1)
		go func() {
			defer recoverFrom("the failure of a group")
			defer g.mourning.Add(-1)
			g.peerDied(rank)
		}()
		return true
	}
	return false
}

// unfinishedHere returns the failure of a wait for the issued operations, some of which are not complete. It is that of
// an operation on a device where there is one, and of the oldest one if that is known.
func (g *Group) unfinishedHere(what string, waited time.Duration) *coll.Failure {
	for _, l := range slices.Backward(g.lanes()) {
		t, found := oldest(l.run)
		if !found {
			continue
		}
		d, until := diagnosis{g, l.run}, time.Now().Add(awakeFor)
		if g.arbiter != nil {
			t.Code = runner.Timeout
			until = d.askFor(t)
		}
		return d.givenUp(t, until, waited)
	}
	return &coll.Failure{Status: coll.Timeout, Rank: -1, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: %s has operations %s", g.title(), g.number(g.rank), what)}
}

// oldest returns the first of the operations of a lane that are not complete. It waits a moment for a thread that
// carries one out.
func oldest(run *runner.Group) (t runner.Incident, found bool) {
	for until := time.Now().Add(2 * policy.Drain); run.Unfinished() > 0; time.Sleep(settlePause) {
		if t, found, _ = run.Oldest(); found || time.Now().After(until) {
			break
		}
	}
	return t, found
}

func (g *Group) onDevices() bool {
	d := g.device.Load()
	return d != nil && d.run.Unfinished() > 0
}

func (g *Group) unfinished() bool { return g.unfinishedRuns() > 0 || g.composites.Load() > 0 }

// destroyLimit returns how long Destroy waits for operations. After a Destroy that gave up, the next ones wait a tenth
// as long, because peers that did not join the operations of one group rarely join those of the next.
func (p *Process) destroyLimit() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.inVain) < destroyTimeout {
		return destroyTimeout / 10
	}
	return destroyTimeout
}

func (p *Process) destroyTimedOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inVain = time.Now()
}
