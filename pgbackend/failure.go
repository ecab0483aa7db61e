package pgbackend

import (
	"errors"
	"fmt"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// adopt makes f, the group's first cause, this process's answer to every unfinished and later operation. The first
// call decides. Who is told of failures is told before operations raise this one.
func (g *Group) adopt(f *coll.Failure) {
	if g.cause.CompareAndSwap(nil, f) {
		g.info("down: %s", f.Message)
		g.failureCallback.ring(f)
		g.process.observers.DumpFailure(view{g})
	}
	g.failureCallback.wait()
	g.run.Down(g.cause.Load())
}

// incident diagnoses what a driver found in an operation, declares it as the group's failure unless there is one, and takes
// the group down.
func (g *Group) incident(t runner.Incident) {
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		return
	}
	if g.cause.Load() != nil || t.Code == runner.FailureWord {
		// Down in this process only: destroyed.
		if f := g.cause.Load(); f != nil {
			g.run.Down(f)
			return
		}
	}
	g.declare(g.diagnose(t))
}

// declare makes f the group's first cause, unless there is one already, and takes the group down with that. Several
// goroutines, and ranks, may find something at once.
func (g *Group) declare(f *coll.Failure) { g.adopt(g.run.Declare(f)) }

// peerDied is called when the process of a rank has ended.
func (g *Group) peerDied(rank int) {
	if !g.life.lost(rank) || !g.life.acquire() {
		return
	}
	var fault *coll.Failure
	defer g.life.release()
	defer g.recoverInto(&fault)
	last, left := g.run.LastCall(rank)
	if left {
		return
	}
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		g.process.observers.DumpLate(view{g}, rank)
		return
	}
	m := g.members[rank]
	f := &coll.Failure{Status: coll.PeerFailure, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name, Sequence: g.run.Sequence()}
	doing := "before its first collective"
	if call, ok := g.run.Announced(rank, last); ok {
		f.Op = call.Op.Name()
		doing = "in or after " + call.Op.Describe(last)
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: Connection closed by peer: %s died %s; look at its log for the reason, then restart the job", g.title(), g.who(rank), doing)
	g.declare(f)
}

// Abort makes every operation of the group fail, here and on every rank.
func (g *Group) Abort(reason string) {
	if reason == "" {
		reason = "abort() was called"
	}
	g.end(&coll.Failure{Status: coll.Aborted, Rank: g.rank,
		Message: fmt.Sprintf("sagecomm: group %q was aborted by %s: %s", g.title(), g.number(g.rank), reason)})
}

// Fail makes every operation of the group fail, here and on every rank, with the status, rank, operation and message of f.
func (g *Group) Fail(f *coll.Failure) error {
	if !f.Status.Failed() {
		return fmt.Errorf("sagecomm: group_fail: status %d is no error", f.Status)
	}
	if f.Rank < -1 || f.Rank >= g.size {
		return fmt.Errorf("sagecomm: group_fail: there is no rank %d in a group of %d", f.Rank, g.size)
	}
	g.end(f)
	return nil
}

// end declares a failure that a caller has found.
func (g *Group) end(f *coll.Failure) {
	if !g.life.acquire() {
		return
	}
	defer g.life.release()
	if g.failed() != nil {
		return
	}
	f.Group, f.Sequence = g.name, g.run.Sequence()
	if f.Rank >= 0 && f.Rank < g.size {
		f.PID, f.Host = g.members[f.Rank].PID, g.members[f.Rank].Host
	}
	g.declare(f)
}

// destroyTimeout bounds how long Destroy waits for what was issued: peers may never make their calls. Tests change it.
var destroyTimeout = 2 * time.Second

// CreateFailure is the failure of a group that never came to be.
func CreateFailure(name string, err error) *coll.Failure {
	status := coll.Invalid
	var known *coll.Failure
	if errors.As(err, &known) {
		return known
	}
	var absent *bootstrap.TimeoutError
	var ranks *bootstrap.FailedError
	switch {
	case errors.As(err, &absent):
		status = coll.Timeout
	case errors.As(err, &ranks):
		status = coll.System
	}
	return &coll.Failure{Status: status, Rank: -1, Group: name, Message: err.Error()}
}
