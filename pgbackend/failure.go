package pgbackend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// adopt makes f, the group's first cause, this process's answer to every unfinished and later operation. The first
// call decides.
func (g *Group) adopt(f *coll.Failure) {
	if g.cause.CompareAndSwap(nil, f) {
		g.info("down: %s", f.Message)
	}
	g.run.Down(g.cause.Load())
}

// trouble judges what a driver found in an operation, declares it as the group's failure unless there is one, and takes
// the group down.
func (g *Group) trouble(t runner.Trouble) {
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
	g.declare(g.judge(t))
}

// declare makes f the group's first cause, unless there is one already, and takes the group down with that. Several
// goroutines, and ranks, may find something at once.
func (g *Group) declare(f *coll.Failure) { g.adopt(g.run.Declare(f)) }

func (g *Group) who(rank int) string {
	if rank < 0 || rank >= len(g.members) {
		return fmt.Sprintf("rank %d", rank)
	}
	m := g.members[rank]
	return fmt.Sprintf("rank %d (host %s, pid %d)", rank, m.Host, m.PID)
}

// blame begins a failure for which one rank answers.
func (g *Group) blame(status coll.Status, rank int, t runner.Trouble) *coll.Failure {
	f := &coll.Failure{Status: status, Rank: rank, Sequence: t.Sequence, Op: t.Op.Name(), Group: g.name}
	if rank >= 0 && rank < len(g.members) {
		f.PID, f.Host = g.members[rank].PID, g.members[rank].Host
	}
	return f
}

func (g *Group) judge(t runner.Trouble) *coll.Failure {
	switch t.Code {
	case runner.Mismatch:
		return g.mismatch(t)
	case runner.Timeout:
		return g.timeout(t)
	case runner.Left:
		if f := g.run.GaveUp(t.Peer); f != nil {
			return f
		}
		f := g.blame(coll.PeerFailure, t.Peer, t)
		last, _ := g.run.LastCall(t.Peer)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s has left the group after collective #%d, and rank %d needs it in %s; if its log shows an exception, look there for the reason, else let all ranks make the same calls before any of them destroys the group or ends",
			g.name, g.who(t.Peer), last, g.rank, describe(t.Op, t.Sequence))
		return f
	case runner.Length:
		f := g.blame(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d called %s, but %s sent a message of %d bytes; make both sides agree",
			g.name, g.rank, describe(t.Op, 0), g.who(t.Peer), t.Got)
		return f
	case runner.WrongType:
		f := g.blame(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d called %s, but %s sent elements of %v; make both sides agree",
			g.name, g.rank, describe(t.Op, 0), g.who(t.Peer), coll.DataType(t.Got))
		return f
	case runner.Split:
		f := g.blame(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d expects %d bytes from %s in all_to_all #%d, which sends it %d; the input splits of one rank must be the output splits of the others",
			g.name, g.rank, t.Want, g.who(t.Peer), t.Sequence, t.Got)
		return f
	case runner.Garbage:
		f := g.blame(coll.Internal, t.Peer, t)
		what := fmt.Sprintf("message, where rank %d looks for one", g.rank)
		if t.Op.Kind.Collective() {
			what = fmt.Sprintf("place of its slots, which rank %d needs in %s", g.rank, describe(t.Op, t.Sequence))
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s wrote something that is no %s; its process, or that of another rank, has written where it should not: look for stray pointers there",
			g.name, g.who(t.Peer), what)
		return f
	case runner.NoMemory:
		f := g.blame(coll.System, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d has no memory for a message from %s", g.name, g.rank, g.who(t.Peer))
		return f
	default:
		f := g.blame(coll.Internal, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d met a state that cannot be (code %d) in %s", g.name, g.rank, t.Code, describe(t.Op, t.Sequence))
		return f
	}
}

// mismatch finds the first call in which this rank and the peer parted, going back as far as both remember.
func (g *Group) mismatch(t runner.Trouble) *coll.Failure {
	f := g.blame(coll.Mismatch, t.Peer, t)
	for seq := max(t.Sequence, 63) - 62; seq <= t.Sequence; seq++ {
		mine, ok := g.run.Announced(g.rank, seq)
		theirs, known := g.run.Announced(t.Peer, seq)
		if ok && known && mine.Hash != theirs.Hash {
			f.Sequence, f.Op = seq, mine.Op.Name()
			f.Message = fmt.Sprintf("sagecomm: group %q: ranks disagree in collective #%d: rank %d called %s, rank %d called %s; every rank must make the same calls in the same order",
				g.name, seq, g.rank, announced(mine), t.Peer, announced(theirs))
			return f
		}
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: the calls of ranks %d and %d differ before collective #%d, further back than both remember; every rank must make the same calls in the same order",
		g.name, g.rank, t.Peer, t.Sequence)
	return f
}

// timeout names the ranks that have not arrived and what each did last.
func (g *Group) timeout(t runner.Trouble) *coll.Failure {
	f := g.blame(coll.Timeout, t.Peer, t)
	if !t.Op.Kind.Collective() {
		why := fmt.Sprintf("the other side has not called its part; its last collective is #%d", g.last(t.Peer))
		if t.Op.OfSparse() {
			why = fmt.Sprintf("all ranks have arrived, but %s does not go on", g.who(t.Peer))
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: timeout after %v on rank %d in %s: %s", g.name, t.Timeout, g.rank, describe(t.Op, 0), why)
		return f
	}
	var missing []string
	var others []string
	for rank := range g.size {
		last := g.last(rank)
		if rank == g.rank || last >= t.Sequence {
			continue
		}
		if len(missing) == 8 {
			others = append(others, strconv.Itoa(rank))
			continue
		}
		did := "has called no collective yet"
		if call, ok := g.run.Announced(rank, last); ok {
			did = "last called " + describe(call.Op, last)
		}
		missing = append(missing, g.who(rank)+" "+did)
		if len(missing) == 1 {
			*f = *g.blame(coll.Timeout, rank, t)
		}
	}
	var what string
	if len(missing) == 0 {
		behind := g.behind(t.Peer)
		*f = *g.blame(coll.Timeout, behind, t)
		what = "all ranks have arrived, but " + g.who(behind) + " does not go on"
	} else {
		what = "not arrived: " + strings.Join(missing, "; ")
		if len(others) > 0 {
			what += "; and rank " + strings.Join(others, ", ")
		}
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: timeout after %v on rank %d in %s; %s", g.name, t.Timeout, g.rank, describe(t.Op, t.Sequence), what)
	return f
}

// behind is the rank that holds up a collective in which all have begun. The one that is awaited may sleep for another
// one itself, down to the one that does not go on; and none of those that wait can be further back than that.
func (g *Group) behind(awaited int) int {
	seen := make([]bool, g.size)
	seen[g.rank] = true
	until := time.Now().Add(awakeFor)
	for next := awaited; next >= 0 && !seen[next]; next = g.awaitedBy(next, until) {
		seen[next] = true
		awaited = next
	}
	least := g.run.Consumed(awaited)
	for rank := range g.size {
		if n := g.run.Consumed(rank); n < least {
			awaited, least = rank, n
		}
	}
	return awaited
}

// awaitedBy is the rank that a rank sleeps for, -1 if it does not. It is asked for a while: who waits for long is awake from
// time to time.
func (g *Group) awaitedBy(rank int, until time.Time) int {
	for ; ; time.Sleep(200 * time.Microsecond) {
		if next := g.run.Awaits(rank); next >= 0 || time.Now().After(until) {
			return next
		}
	}
}

// awakeFor is longer than a rank that waits stays awake, on a machine that has more to do as well.
const awakeFor = 200 * time.Millisecond

func (g *Group) last(rank int) uint64 {
	if rank < 0 || rank >= g.size {
		return 0
	}
	last, _ := g.run.LastCall(rank)
	return last
}

// announced describes a call of a rank's, which may have blocks of other lengths than another one's.
func announced(a runner.Announced) string {
	text := describe(a.Op, 0)
	if a.Uneven {
		text += " with blocks of different lengths"
	}
	return text
}

// describe writes a call as a user would: "all_reduce #7 (float32, SUM, 1000 elements)".
func describe(op coll.Op, sequence uint64) string {
	if op.OfSparse() {
		return describeSparse(op, sequence)
	}
	var parts []string
	if op.Kind != coll.Barrier {
		parts = append(parts, op.Type.String())
	}
	if op.Kind.Reduces() {
		parts = append(parts, op.Reduce.String())
	}
	if op.Parts > 1 {
		parts = append(parts, manyParts(op.Parts))
	}
	switch {
	case op.Kind == coll.Barrier, op.Kind == coll.AllToAll:
	case op.Type.Size() > 0:
		parts = append(parts, fmt.Sprintf("%d elements", op.Bytes()/uint64(op.Type.Size())))
	default:
		parts = append(parts, fmt.Sprintf("%d bytes", op.Bytes()))
	}
	switch {
	case op.Kind.Rooted():
		parts = append(parts, fmt.Sprintf("root %d", op.Root))
	case op.Kind == coll.Send:
		parts = append(parts, fmt.Sprintf("to rank %d, tag %d", op.Root, op.Tag))
	case op.Kind == coll.Recv && op.Root == coll.AnySource:
		parts = append(parts, fmt.Sprintf("from any rank, tag %d", op.Tag))
	case op.Kind == coll.Recv:
		parts = append(parts, fmt.Sprintf("from rank %d, tag %d", op.Root, op.Tag))
	}
	text := numbered(op, sequence)
	if len(parts) == 0 {
		return text
	}
	return text + " (" + strings.Join(parts, ", ") + ")"
}

// describeSparse writes a part of an all_reduce of sparse tensors: "all_reduce #7 of a sparse tensor".
func describeSparse(op coll.Op, sequence uint64) string {
	text := numbered(op, sequence) + " of a sparse tensor"
	switch op.Kind {
	case coll.Send:
		text += fmt.Sprintf(" (to rank %d)", op.Root)
	case coll.Recv:
		text += fmt.Sprintf(" (from rank %d)", op.Root)
	}
	return text
}

func numbered(op coll.Op, sequence uint64) string {
	if sequence == 0 {
		return op.Name()
	}
	return fmt.Sprintf("%s #%d", op.Name(), sequence)
}

// manyParts says how many operations were packed together, of which a peer's record counts so many at most.
func manyParts(n int) string {
	if n >= runner.ManyParts {
		return fmt.Sprintf("%d or more fused", runner.ManyParts)
	}
	return fmt.Sprintf("%d fused", n)
}

// peerDied is called when the process of a rank has ended.
func (g *Group) peerDied(rank int) {
	g.mu.Lock()
	g.gone[rank] = true
	idle := !g.joined || g.ended
	g.mu.Unlock()
	if idle || !g.hold() {
		return
	}
	var fault *coll.Failure
	defer g.letGo()
	defer g.recoverInto(&fault)
	last, left := g.run.LastCall(rank)
	if left {
		return
	}
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		return
	}
	m := g.members[rank]
	f := &coll.Failure{Status: coll.PeerFailure, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name, Sequence: g.run.Sequence()}
	doing := "before its first collective"
	if call, ok := g.run.Announced(rank, last); ok {
		f.Op = call.Op.Name()
		doing = "in or after " + describe(call.Op, last)
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: %s died %s; look at its log for the reason, then restart the job", g.name, g.who(rank), doing)
	g.declare(f)
}

// Abort makes every operation of the group fail, here and on every rank.
func (g *Group) Abort(reason string) {
	if reason == "" {
		reason = "abort() was called"
	}
	g.end(&coll.Failure{Status: coll.Aborted, Rank: g.rank,
		Message: fmt.Sprintf("sagecomm: group %q was aborted by rank %d: %s", g.name, g.rank, reason)})
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
	if !g.hold() {
		return
	}
	defer g.letGo()
	if g.fallen() != nil {
		return
	}
	f.Group, f.Sequence = g.name, g.run.Sequence()
	if f.Rank >= 0 && f.Rank < g.size {
		f.PID, f.Host = g.members[f.Rank].PID, g.members[f.Rank].Host
	}
	g.declare(f)
}

// destroyPatience bounds how long Destroy waits for what was issued: peers may never make their calls. Tests change it.
var destroyPatience = 2 * time.Second

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
