package pgbackend

import (
	"errors"
	"fmt"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// issue issues an operation that the fast path does not take: the first one of its kind and size class, an asynchronous
// one, one that is queued behind others, or one that must be refused.
func (g *Group) issue(call runner.Call) *coll.Failure {
	if f := g.failed(); f != nil {
		return f
	}
	op, f := g.check(call)
	if f != nil {
		return f
	}
	lane := &g.lane
	if !op.Device.IsHost() {
		if lane, f = g.deviceLane(op); f != nil {
			return f
		}
		lane.saw(op.Device.Type)
	}
	if !op.Kind.Collective() {
		p2p, has := lane.engine.(engine.P2P)
		if !has {
			return g.refuse(op, fmt.Errorf("sagecomm: %s: p2p operations on %v are not supported by the engine %s; use tensors of the CPU", op.Name(), op.Device, lane.engine.Name()))
		}
		return g.issued(op, p2p.IssueP2P(call, op))
	}
	if lane == &g.lane && g.buckets != nil {
		return g.buckets.issue(call, op)
	}
	prepared, err := lane.engine.Prepare(call, op)
	if err != nil {
		return g.issued(op, err)
	}
	return g.issued(op, lane.engine.Issue(call, op, prepared))
}

// issued returns the failure for the error of an engine that has prepared or issued an operation, or has not.
func (g *Group) issued(op coll.Op, err error) *coll.Failure {
	if err != nil {
		if errors.Is(err, runner.ErrDown) {
			if f := g.failed(); f != nil {
				return f
			}
		}
		var refused *engine.Refusal
		if errors.As(err, &refused) {
			if errors.Is(refused, device.ErrCaptured) {
				return g.refuse(op, g.refusedInCapture(op, refused))
			}
			return g.refuse(op, refused)
		}
		return g.broken(op, err)
	}
	return nil
}

// refusedInCapture returns the error of a call whose stream is being captured. It names an engine other than that of
// the group by which a graph can hold the collective and which all ranks offer, if there is one.
func (g *Group) refusedInCapture(op coll.Op, refused error) error {
	if !op.Kind.Collective() {
		return refused
	}
	for _, name := range []string{cudaEngine, ncclEngine} {
		c, known := g.deviceEngine.Candidate(name)
		captures := deviceEngines[name].captures
		if known && len(c.Lacking) == 0 && g.deviceEngine.Engine != name && captures != nil && captures(op) {
			return fmt.Errorf("%w, or set %s=%s on all ranks: a graph can hold collectives of that engine", refused, env.Engine.Name(), name)
		}
	}
	return refused
}

// check returns a failure for a call that this rank may not make.
func (g *Group) check(call runner.Call) (coll.Op, *coll.Failure) {
	op := call.Op(g.size)
	if err := op.Check(g.rank, g.size); err != nil {
		return op, g.refuse(op, err)
	}
	if !call.Whole(op.Type.Size()) {
		return op, g.refuse(op, fmt.Errorf("sagecomm: %v: rank %d: a segment of a buffer does not hold whole elements of %v", op.Name(), g.rank, op.Type))
	}
	return op, nil
}

// fuse returns the batch of each operation of a coalesced call whose shape is not in the runner's cache.
func (g *Group) fuse(calls []runner.Call) ([]uint32, *coll.Failure) {
	if f := g.failed(); f != nil {
		return nil, f
	}
	ops := make([]coll.Op, len(calls))
	for i, call := range calls {
		var f *coll.Failure
		if ops[i], f = g.check(call); f != nil {
			return nil, f
		}
		if on := ops[0].Device; ops[i].Device != on {
			return nil, g.refuse(ops[i], fmt.Errorf("sagecomm: %s: rank %d: operation %d of one coalesced call, counted from 0, is on %v, and those before it are on %v: issue them apart",
				ops[i].Name(), g.rank, i, ops[i].Device, on))
		}
	}
	return g.batches(calls, ops)
}

// broken takes the group down because peers make a call that this rank cannot join.
func (g *Group) broken(op coll.Op, err error) *coll.Failure {
	g.declareFailure(g.system(op, err))
	return g.failed()
}

// Issue issues an operation for Go callers: composite operations, tests and benchmarks. The input buffer is the
// concatenation of in, the output buffer that of out; runner.Group.Issue says who owns them until the operation is
// complete.
func (g *Group) Issue(op coll.Op, in, out [][]byte) (runner.Work, *coll.Failure) {
	return g.run.Issue(op, in, out)
}

// IssueBridged is Issue for callers that bring a sagecomm_bridge.
func (g *Group) IssueBridged(op coll.Op, in, out [][]byte, bridge unsafe.Pointer) (runner.Work, *coll.Failure) {
	return g.run.IssueBridged(op, in, out, bridge)
}

// IssueCoalesced issues several operations at once for Go callers; see runner.Group.IssueCoalesced.
func (g *Group) IssueCoalesced(calls []runner.Coalesced) (runner.Work, *coll.Failure) {
	return g.run.IssueCoalesced(calls)
}

// makeFifo makes the fifo of a lane that this rank writes for a peer.
func (g *Group) makeFifo(lane *runner.Group, peer int) {
	if g.failed() != nil {
		return
	}
	g.compiling.Lock()
	var err error
	if !lane.HasFifo(peer) {
		g.openPair(peer)
		var off int64
		if off, err = g.memory.more(lane.FifoBytes(peer)); err == nil {
			lane.SetFifo(peer, off)
		}
	}
	g.compiling.Unlock()
	if err != nil {
		g.declareFailure(g.system(coll.Op{Kind: coll.Send, Root: peer}, err))
	}
}

// failed returns the first cause of failure, nil if operations can be issued.
func (g *Group) failed() *coll.Failure {
	if f := g.cause.Load(); f != nil {
		return f
	}
	if f := g.run.FirstCause(); f != nil {
		g.adopt(f)
		return f
	}
	return nil
}

func (g *Group) refuse(op coll.Op, err error) *coll.Failure {
	return &coll.Failure{Status: coll.Invalid, Rank: g.rank, Op: op.Name(), Group: g.name, Message: err.Error()}
}

func (g *Group) system(op coll.Op, err error) *coll.Failure {
	f := g.failureOf(coll.System, g.rank, runner.Incident{Op: op})
	f.OnDevice = !op.Device.IsHost()
	f.Message = fmt.Sprintf("sagecomm: group %q: %s cannot go on with %s: %v", g.title(), g.who(g.rank), op.Name(), err)
	return f
}
