package host

import (
	"fmt"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// actions translates actions to those of the runner.
var actions = map[plan.Action]uint8{
	plan.Publish: runner.Publish, plan.ReduceSlots: runner.Reduce, plan.Collect: runner.Collect,
	plan.Read: runner.Read, plan.Await: runner.Await, plan.Local: runner.Local,
}

// sources translates sources to those of the runner.
var sources = map[plan.Source]uint8{
	plan.Nobody: runner.Nobody, plan.Everybody: runner.Everybody, plan.Others: runner.Others, plan.FromRoot: runner.FromRoot,
}

// Compile returns the program that carries out a slot plan for calls like op.
func Compile(p plan.SlotPlan, op coll.Op) (runner.Compiled, error) {
	out := runner.Program{Kind: op.Kind, Algorithm: p.Algorithm, Type: op.Type, Reduce: op.Reduce, Large: int(p.Slots), Chunk: p.Chunk,
		Head: p.Head, Divisor: 1, InputBlocks: p.Input == plan.Blocks, OutputBlocks: p.Output == plan.Blocks}
	if op.Reduce == coll.Avg {
		out.Divisor = float64(p.Size)
	}
	// A rank's own contribution need not pass through its slot, unless it is scaled on the way in. If in addition others
	// read only shares of the slot, nobody reads this rank's own share there, and it is not published.
	out.OwnFromInput = op.Kind.Reduces() && op.Reduce != coll.PremulSum
	shares := false
	for _, s := range p.Stages {
		shares = shares || s.Action == plan.ReduceSlots && s.Part == plan.Share
	}
	for _, s := range p.Stages {
		action, known := actions[s.Action]
		if !known {
			return runner.Compiled{}, fmt.Errorf("sagecomm: %v: the runner has no %v", op.Kind, s.Action)
		}
		out.Stages = append(out.Stages, runner.Stage{
			Action: action, Lag: uint8(s.Lag), From: sources[s.From],
			Back:  sources[s.Back],
			Share: s.Part == plan.Share, ToOutput: s.ToOutput, Head: s.Head,
			SkipOwnIn: s.Action == plan.Publish && shares && out.OwnFromInput,
		})
	}
	return runner.NewProgram(out)
}
