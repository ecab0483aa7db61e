package pgbackend

import (
	"fmt"
	"slices"

	"sagecomm/algo"
	boardplan "sagecomm/algo/board"
	messageplan "sagecomm/algo/message"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// lower makes a program of a plan. Tests put a fault in its place.
var lower, lowerMessages = host.Compile, host.CompileMessages

// program finds the program of a call, or makes it; kept says that the cache has it.
func (g *Group) program(call runner.Call, op coll.Op) (p runner.Compiled, kept bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key, class := g.run.Key(call, op.Bytes())
	if p, kept = g.run.Lookup(key); kept {
		return p, true, nil
	}
	if p, err = g.compile(op, g.classes[op.Kind][class]); err != nil {
		return p, false, err
	}
	return p, g.run.Keep(key, p), nil
}

// compile makes the program of a class for calls like op, and the memory that it needs and this rank has not.
func (g *Group) compile(op coll.Op, class algo.Class) (runner.Compiled, error) {
	if g.size > 1 && slices.Contains(messageplan.Algorithms(op.Kind), class.Algorithm) {
		return g.compileMessages(op, class)
	}
	plan, err := boardplan.Build(op.Kind, class.Algorithm, boardplan.Place{Rank: g.rank, Size: g.size, Root: op.Root, Lane: class.Lane, Chunk: class.Chunk})
	if err != nil {
		return runner.Compiled{}, err
	}
	if plan.Lane == boardplan.LargeLane && g.size > 1 && !g.run.HasLarge() {
		off, err := g.board.more(runner.LargeSlots * runner.LargeStride)
		if err != nil {
			return runner.Compiled{}, err
		}
		g.run.SetLarge(off)
	}
	return lower(plan, op)
}

// compileMessages makes the program of a plan of messages, and the flows that this rank sends through in it.
func (g *Group) compileMessages(op coll.Op, class algo.Class) (runner.Compiled, error) {
	plan, err := messageplan.Build(op.Kind, class.Algorithm, messageplan.Place{Rank: g.rank, Size: g.size, Root: op.Root, Chunk: class.Chunk, Hosts: g.hosts()})
	if err != nil {
		return runner.Compiled{}, err
	}
	if longest := plan.Largest(); longest > runner.FlowMessage {
		return runner.Compiled{}, fmt.Errorf("%v %s in chunks of %d bytes sends messages of %d, at most %d are possible", op.Kind, class.Algorithm, class.Chunk, longest, runner.FlowMessage)
	}
	for _, s := range plan.Steps {
		if s.Op != messageplan.Send || g.run.HasFlow(s.Peer, s.Channel) {
			continue
		}
		off, err := g.board.more(runner.FlowBytes)
		if err != nil {
			return runner.Compiled{}, err
		}
		g.run.SetFlow(s.Peer, s.Channel, off)
	}
	return lowerMessages(plan, op)
}

// hosts are the ranks of each host, in the order of their first ranks; nil where there is one host, or where hosts have
// not equally many ranks and plans take the group as it is.
func (g *Group) hosts() [][]int {
	var list [][]int
	number := map[string]int{}
	for rank, m := range g.members {
		at, known := number[m.HostID]
		if !known {
			at = len(list)
			number[m.HostID] = at
			list = append(list, nil)
		}
		list[at] = append(list[at], rank)
	}
	if len(list) < 2 || slices.ContainsFunc(list, func(ranks []int) bool { return len(ranks) != len(list[0]) }) {
		return nil
	}
	return list
}
