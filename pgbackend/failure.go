package pgbackend

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// closedByPeer is in the text of each failure by the end of a rank: users' programs look for it because torch's
// backends use it.
const closedByPeer = "Connection closed by peer"

// incidentSlice is how long a thread of a caller waits for the verdict before it comes back to its caller, which looks
// for signals.
const incidentSlice = 50 * time.Millisecond

// lookLimit is for how long the diagnosis of a death looks whether a driver lets go of a lane.
const lookLimit = 2 * time.Millisecond

// adopt makes every unfinished and later operation of this process fail with f, the group's first cause. Only the first
// call sets the cause.
func (g *Group) adopt(f *coll.Failure) { g.goDown(f, g.cause.CompareAndSwap(nil, f)) }

// goDown takes the group down with its cause, behind failure callbacks and the dump of the flight recorder. fresh: f
// has just become the cause, so this call sees to both; all others wait for that.
func (g *Group) goDown(f *coll.Failure, fresh bool) {
	if fresh {
		g.announce(f)
	}
	<-g.announced
	if g.links != nil && !g.clean.Load() {
		g.links.forgo(g.rank)
	}
	g.failureCallback.wait()
	g.down()
}

// downSoon takes a group that has a cause down, as goDown does. It waits for incidentSlice at most: a driver that comes
// back to an operation whose group is not down yet meets the incident again.
func (g *Group) downSoon() {
	select {
	case <-g.announced:
		g.failureCallback.wait()
		g.down()
	case <-time.After(incidentSlice):
	}
}

// announce calls failure callbacks and dumps the flight recorder, each within a bounded time.
func (g *Group) announce(f *coll.Failure) {
	defer close(g.announced)
	g.info("failed: %s", strings.TrimPrefix(f.Message, "sagecomm: "))
	g.failureCallback.call(f)
	g.process.observers.DumpFailure(view{g})
}

// adoptOwn is adopt for a failure of a group over several hosts of which there is no verdict yet: operations fail with
// it, and the verdict takes its place. The failure word stays as it is.
func (g *Group) adoptOwn(f *coll.Failure) {
	g.replacing.Lock()
	first := g.cause.CompareAndSwap(nil, f)
	g.provisional = g.provisional || first
	g.replacing.Unlock()
	g.goDown(f, first)
}

// takeVerdict takes the verdict on a group over several hosts: the first cause of its failure. Operations that have
// failed keep the cause that they had. Failure callbacks run once, with the cause that came first. Several goroutines
// may call it at the same time; the first call counts. A panic leaves the group down, with the verdict or with the
// panic as its cause.
func (g *Group) takeVerdict(first *coll.Failure) {
	if !g.life.acquire() {
		return
	}
	defer g.life.release()
	defer func() {
		if r := recover(); r != nil {
			g.adopt(g.fault(r)) // a failure that is declared would come back here
		}
	}()
	g.run.Declare(first)
	g.replacing.Lock()
	fresh := g.cause.CompareAndSwap(nil, first)
	var own *coll.Failure // that the verdict takes the place of; the cause of a group that is destroyed stays
	if g.provisional {
		own = g.cause.Swap(first)
	}
	g.provisional = false
	g.replacing.Unlock()
	g.goDown(first, fresh)
	if own == nil {
		return
	}
	g.info("the verdict: %s", strings.TrimPrefix(first.Message, "sagecomm: "))
	for _, l := range g.lanes() {
		g.recause(l.run, first)
	}
	if own.Status == coll.Aborted { // of which nothing was dumped
		g.process.observers.DumpFailure(view{g})
	}
}

// incident diagnoses why a driver of a lane cannot go on with an operation, declares that as the group's failure unless
// there is one, and takes the group down.
func (g *Group) incident(lane *runner.Group, t runner.Incident) {
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		return
	}
	if g.cause.Load() != nil { // the group is down in this process only: it is being destroyed, or has no verdict yet
		g.downSoon()
		return
	}
	if g.arbiter == nil || t.Code == runner.FailureWord { // who finds a word that names nobody counts on a cause
		g.declareFailure(diagnosis{g, lane}.diagnose(t, time.Now().Add(awakeFor)))
		return
	}
	g.incidents.declare(g, func() *coll.Failure {
		d := diagnosis{g, lane}
		until := d.askFor(t)
		f := d.diagnose(t, until)
		g.letOthersTell(f, until)
		return f
	})
}

// letOthersTell waits for the cause of another rank where the diagnosis of a timeout, which could go on until a time,
// has found no culprit, and links are made at first need: the first record is the cause of all, and who has the link to
// the culprit knows more. Ranks that wait for each other time out at about the same time.
func (g *Group) letOthersTell(f *coll.Failure, until time.Time) {
	if f.Status != coll.Timeout || f.Rank >= 0 || !g.makesLinks() {
		return
	}
	select {
	case <-g.announced:
	case <-time.After(time.Until(until.Add(stateLimit))):
	}
}

// incidents declares the first incident of a group over several hosts.
type incidents struct {
	first    sync.Once
	declared chan struct{} // closed when the group is down
	missing  atomic.Pointer[missing]
}

// declare diagnoses the first incident and declares it, on a goroutine of its own, because the wait for the verdict is
// longer than a thread of a caller may go without a look for signals. It returns when the group is down, but after
// incidentSlice at the latest. A driver that comes back to an operation whose group is not down yet meets the incident
// again. Requires: the group is acquired.
func (i *incidents) declare(g *Group, diagnose func() *coll.Failure) {
	i.first.Do(func() {
		i.declared = make(chan struct{})
		if !g.life.acquire() { // the group is destroyed, and has a cause
			close(i.declared)
			return
		}
		go func() {
			var fault *coll.Failure
			defer close(i.declared)
			defer g.life.release()
			defer g.recoverInto(&fault)
			g.declareFailure(diagnose())
		}()
	})
	select {
	case <-i.declared:
		g.down()
	case <-time.After(incidentSlice):
	}
}

// declareFailure makes f the group's first cause, unless the group has one already, and takes the group down with the
// first cause. Several goroutines and ranks may declare failures at the same time. In a group over several hosts it
// waits for the verdict, for a bounded time, and then goes down with f until the verdict is there.
func (g *Group) declareFailure(f *coll.Failure) {
	if g.arbiter == nil {
		g.adopt(g.run.Declare(f))
		return
	}
	if first := g.arbiter.declare(f, verdictWait(f.Status), g.announced); first != nil {
		g.takeVerdict(first)
	} else {
		g.adoptOwn(f)
	}
}

// peerDied declares the failure of the group because the process of a rank has ended, unless the rank had left before.
// The watch over that process calls it. To a group that is being destroyed a death matters while operations of this
// rank are not complete.
//
// A rank of another host counts as dead when the link to it is lost. Who knows of that has noted why.
func (g *Group) peerDied(rank int) {
	g.mourning.Add(1)
	defer g.mourning.Add(-1)
	state := g.life.lost(rank)
	if state != live && state != destroying || !g.life.acquire() {
		return
	}
	var fault *coll.Failure
	defer g.life.release()
	defer g.recoverInto(&fault)
	last, left := g.run.LastCall(rank)
	if left {
		return
	}
	g.life.noteDeath(rank)
	if state == destroying && !g.unfinished() {
		return
	}
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		if !g.isRemote(rank) {
			g.process.observers.DumpLate(view{g}, rank)
		}
		return
	}
	f := g.failedRank(coll.PeerFailure, rank)
	f.Sequence = g.run.Sequence()
	theirs := g.nameLastOf(rank, last, f)
	why := g.whyLost(rank)
	if why != nil { // what the rank has called is known if it was asked for, so the operation is that of this rank
		if theirs != "" {
			theirs = " " + theirs + ","
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s: %s is lost%s %s: %v; restart the job", g.title(), closedByPeer, g.who(rank), theirs, g.nameOwn(f), why)
	} else {
		if theirs == "" {
			theirs = "before its first collective"
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s: %s died %s; look at its log for the reason, then restart the job", g.title(), closedByPeer, g.who(rank), theirs)
	}
	g.declareFailure(f)
}

// nameLastOf gives f the last collective that a rank has announced, in the host lane with the number last, and returns
// it in words: "" if none is known.
func (g *Group) nameLastOf(rank int, last uint64, f *coll.Failure) (doing string) {
	if call, ok := g.run.Announced(rank, last); ok {
		f.Op = call.Op.Name()
		doing = "in or after " + call.Op.Describe(last)
	}
	if call, ok := g.run.LastIn(runner.DeviceLane, rank); ok {
		on := call.Op.Describe(call.Sequence) + " on a device"
		if f.Op != "" {
			doing += ", and in or after " + on
		} else {
			f.Op, f.OnDevice, doing = call.Op.Name(), true, "in or after "+on
			if d := g.device.Load(); d != nil {
				f.Sequence = d.run.Sequence()
			}
		}
	}
	return doing
}

// nameOwn gives f the operation that this rank is in, or else the last collective that it has called, and returns it in
// words.
func (g *Group) nameOwn(f *coll.Failure) string {
	me := g.number(g.rank)
	name := func(l *lane, op coll.Op, sequence uint64) string {
		f.Op, f.Sequence, f.OnDevice = op.Name(), sequence, l.run.Lane() == runner.DeviceLane
		if f.OnDevice {
			return op.Describe(sequence) + " on a device"
		}
		return op.Describe(sequence)
	}
	for _, l := range g.lanes() {
		if t, found, driven := awaited(l.run); found {
			return fmt.Sprintf("while %s was in %s", me, name(l, t.Op, t.Sequence))
		} else if call, called := l.run.LastIn(l.run.Lane(), g.rank); driven && called {
			return fmt.Sprintf("while %s was in %s", me, name(l, call.Op, call.Sequence))
		}
	}
	for _, l := range g.lanes() {
		if call, called := l.run.LastIn(l.run.Lane(), g.rank); called {
			return fmt.Sprintf("after %s of %s", name(l, call.Op, call.Sequence), me)
		}
	}
	return "before the first collective of " + me
}

// awaited returns the first of the operations of a lane that are not complete, as Oldest does. A driver that finds
// nothing to wait for lets go soon, so one that does not is in a collective.
func awaited(run *runner.Group) (t runner.Incident, found, driven bool) {
	for until := time.Now().Add(lookLimit); ; time.Sleep(settlePause) {
		if t, found, driven = run.Oldest(); !driven || time.Now().After(until) {
			return t, found, driven
		}
	}
}

// Abort makes every operation of the group fail, here and on every rank.
func (g *Group) Abort(reason string) {
	if reason == "" {
		reason = "abort() was called"
	}
	g.abortFor("", 0, reason)
}

// abortFor is Abort for a call of this library, whose name is the operation of the failure.
func (g *Group) abortFor(call string, shrink uint64, reason string) {
	g.fail(&coll.Failure{Status: coll.Aborted, Rank: g.rank, Op: call, Shrink: shrink,
		Message: fmt.Sprintf("sagecomm: group %q was aborted by %s: %s", g.title(), g.number(g.rank), reason)})
}

// Fail makes every operation of the group fail, here and on every rank, because this rank's caller cannot go on as the
// peers do. Of fault it takes the status, the operation, which may be unknown, and the message, which is the reason.
func (g *Group) Fail(fault *coll.Failure) error {
	if fault.Status != coll.System && fault.Status != coll.Internal {
		return fmt.Errorf("a group cannot fail with status %v: expected system or internal", fault.Status)
	}
	in := ""
	if fault.Op != "" {
		in = " in " + fault.Op
	}
	if fault.Op != "" && fault.Sequence != 0 {
		in += fmt.Sprintf(" #%d", fault.Sequence)
	}
	if in != "" && fault.OnDevice {
		in += " on a device"
	}
	f := *fault
	f.Rank = g.rank
	f.Message = fmt.Sprintf("sagecomm: group %q: %s cannot go on as its peers do%s: %s", g.title(), g.who(g.rank), in, fault.Message)
	if !g.fail(&f) {
		return fmt.Errorf("group %q is destroyed", g.title())
	}
	return nil
}

// fail declares a failure that was found outside the runner, unless the group has failed or is destroyed. It fills in
// the group, the culprit's process, and a sequence number that is missing, of the lane in which the operation was. When
// it returns true, the group is down, also if another thread is about to take it down. It returns false if no call may
// enter the group any more.
func (g *Group) fail(f *coll.Failure) bool {
	if !g.life.acquire() {
		return false
	}
	defer g.life.release()
	if known := g.failed(); known != nil {
		g.adopt(known)
		return true
	}
	f.Group = g.name
	if f.Sequence == 0 {
		f.Sequence = g.run.Sequence()
		if d := g.device.Load(); d != nil && f.OnDevice {
			f.Sequence = d.run.Sequence()
		}
	}
	if f.Rank >= 0 && f.Rank < g.size {
		f.PID, f.Host = g.members[f.Rank].PID, g.members[f.Rank].Host
	}
	g.declareFailure(f)
	return true
}
