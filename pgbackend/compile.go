package pgbackend

import (
	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// lower compiles a slot plan to a program. Tests replace it with a function that fails.
var lower = host.Compile

// program returns the program of a call, from the cache or newly made, and reports whether the cache holds it.
func (g *Group) program(call runner.Call, op coll.Op) (p runner.Compiled, kept bool, err error) {
	g.compiling.Lock()
	defer g.compiling.Unlock()
	classes := g.classesOf(op.Kind)
	key, class := g.run.Key(call, op.Bytes())
	if p, kept = g.run.Lookup(key); kept {
		return p, true, nil
	}
	if p, err = g.compile(op, classes[class]); err != nil {
		return p, false, err
	}
	return p, g.run.Keep(key, p), nil
}

// classesOf returns the classes of a kind. They are predicted at its first use. The runner's cache has no program of the kind
// before, so the bounds of the classes may appear there at any moment.
// Requires: g.compiling.
func (g *Group) classesOf(kind coll.Kind) []algo.Class {
	if g.classes[kind] == nil {
		list := g.selector.Boundaries(kind)
		var bounds []uint64
		for _, class := range list[:len(list)-1] {
			bounds = append(bounds, class.UpTo+1)
		}
		g.run.SetClasses(kind, bounds)
		g.classes[kind] = list
	}
	return g.classes[kind]
}

// compile makes the program of a class for calls like op. It makes the large slots first if the plan needs them and this
// rank has none yet.
func (g *Group) compile(op coll.Op, class algo.Class) (runner.Compiled, error) {
	if class.Transport == algo.Channels {
		return g.compileSendRecv(op, class)
	}
	p, err := g.selector.SlotPlan(op.Kind, class, g.rank, op.Root)
	if err != nil {
		return runner.Compiled{}, err
	}
	if p.Slots == plan.LargeSlots && g.size > 1 && !g.run.HasLarge() {
		off, err := g.memory.more(runner.LargeSlots * runner.LargeStride)
		if err != nil {
			return runner.Compiled{}, err
		}
		g.run.SetLarge(off)
	}
	return lower(p, op)
}

// compileSendRecv makes the program of a sendrecv plan, and first the channels through which this rank sends in it.
func (g *Group) compileSendRecv(op coll.Op, class algo.Class) (runner.Compiled, error) {
	p, err := g.selector.SendRecvPlan(op.Kind, class, g.rank, op.Root)
	if err != nil {
		return runner.Compiled{}, err
	}
	for _, s := range p.Steps {
		if s.Op != plan.Send || g.run.HasChannel(s.Peer, s.Channel) {
			continue
		}
		off, err := g.memory.more(runner.ChannelBytes)
		if err != nil {
			return runner.Compiled{}, err
		}
		g.run.SetChannel(s.Peer, s.Channel, off)
	}
	return host.CompileSendRecv(p, op)
}
