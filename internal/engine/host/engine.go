package host

import (
	"sync"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

// Lane is what the engine needs of the lane that it serves.
type Lane struct {
	Run        *runner.Group
	Selector   *algo.Selector
	Rank, Size int

	// Lock guards the classes of the engine, the program cache of Run and Grow. It is held while programs are compiled, which
	// may take tenths of a second.
	Lock *sync.Mutex
	// Grow allocates bytes of this rank's arena and returns their offset. The lane keeps them until it is closed.
	Grow func(bytes int64) (offset int64, err error)
	// Meet makes what the lane has for a rank of another host, if it is one, before the first program that sends to it or receives from it.
	Meet func(rank int)
	// Lower compiles a slot plan; it is Compile, or a test's replacement.
	Lower func(plan.SlotPlan, coll.Op) (runner.Compiled, error)
}

// Engine implements engine.Engine on host memory.
type Engine struct {
	lane    Lane
	classes [coll.KindCount][]algo.Class // size classes by kind; nil: the kind was not used yet
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of a lane.
func New(lane Lane) *Engine { return &Engine{lane: lane} }

// Name implements engine.Engine.
func (e *Engine) Name() string { return "host" }

// Prepare implements engine.Engine.
func (e *Engine) Prepare(call runner.Call, op coll.Op) (p engine.Prepared, err error) {
	e.lane.Lock.Lock()
	defer e.lane.Lock.Unlock()
	classes := e.classesOf(op.Kind)
	key, class := e.lane.Run.Key(call, op.Bytes())
	p.Class = classes[class]
	if p.Program, p.Kept = e.lane.Run.Lookup(key); p.Kept {
		return p, nil
	}
	if p.Program, err = e.compile(op, p.Class); err != nil {
		return p, err
	}
	p.Kept = e.lane.Run.Keep(key, p.Program)
	return p, nil
}

// Issue implements engine.Engine.
func (e *Engine) Issue(call runner.Call, op coll.Op, p engine.Prepared) error {
	err := e.lane.Run.Submit(call, op.Bytes(), p.Program, !p.Kept)
	if err != nil && !p.Kept {
		p.Program.Free()
	}
	return err
}

// Abort implements engine.Engine. No device waits for operations on host memory.
func (e *Engine) Abort() {}

// Close implements engine.Engine.
func (e *Engine) Close() {}

// classesOf returns the classes of a kind. They are predicted at its first use. The runner's cache has no program of the kind
// before, so the bounds of the classes may appear there at any moment.
// Requires: Lane.Lock.
func (e *Engine) classesOf(kind coll.Kind) []algo.Class {
	if e.classes[kind] == nil {
		list := e.lane.Selector.Boundaries(kind)
		var bounds []uint64
		for _, class := range list[:len(list)-1] {
			bounds = append(bounds, class.UpTo+1)
		}
		e.lane.Run.SetClasses(kind, bounds)
		e.classes[kind] = list
	}
	return e.classes[kind]
}

// compile makes the program of a class for calls like op. It makes the large slots first if the plan needs them and this
// rank has none yet.
func (e *Engine) compile(op coll.Op, class algo.Class) (runner.Compiled, error) {
	if class.Transport == algo.Channels {
		return e.compileSendRecv(op, class)
	}
	p, err := e.lane.Selector.SlotPlan(op.Kind, class, e.lane.Rank, op.Root)
	if err != nil {
		return runner.Compiled{}, err
	}
	if p.Slots == plan.LargeSlots && e.lane.Size > 1 && !e.lane.Run.HasLarge() {
		off, err := e.lane.Grow(runner.LargeSlots * runner.LargeStride)
		if err != nil {
			return runner.Compiled{}, err
		}
		e.lane.Run.SetLarge(off)
	}
	return e.lane.Lower(p, op)
}

// compileSendRecv makes the program of a sendrecv plan, and first the channels through which this rank sends in it.
func (e *Engine) compileSendRecv(op coll.Op, class algo.Class) (runner.Compiled, error) {
	p, err := e.lane.Selector.SendRecvPlan(op.Kind, class, e.lane.Rank, op.Root)
	if err != nil {
		return runner.Compiled{}, err
	}
	for _, s := range p.Steps {
		switch s.Op {
		case plan.Send, plan.Recv, plan.RecvReduce:
			e.lane.Meet(s.Peer)
		}
		if s.Op != plan.Send || e.lane.Run.HasChannel(s.Peer, s.Channel) {
			continue
		}
		off, err := e.lane.Grow(e.lane.Run.ChannelBytes())
		if err != nil {
			return runner.Compiled{}, err
		}
		e.lane.Run.SetChannel(s.Peer, s.Channel, off)
	}
	return CompileSendRecv(p, op, e.lane.Run.MessageBytes())
}
