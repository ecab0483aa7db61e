package host

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// stepOps translates ops to those of the runner.
var stepOps = map[plan.Op]uint8{
	plan.Send: runner.StepSend, plan.Recv: runner.StepRecv, plan.RecvReduce: runner.StepRecvReduce,
	plan.Reduce: runner.StepReduce, plan.Copy: runner.StepCopy,
}

// spaces translates spaces to those of the runner.
var spaces = map[plan.Space]int{plan.Input: runner.Input, plan.Output: runner.Output, plan.Scratch: runner.Scratch}

// CompileSendRecv returns the program that carries out a sendrecv plan for calls like op. The runner's channels copy, so
// bytes that a step overwrites were taken when they were sent: programs do not need [plan.Step.After]. A message has at most `longest` bytes.
func CompileSendRecv(p plan.SendRecvPlan, op coll.Op, longest int) (runner.Compiled, error) {
	out := runner.SendRecvProgram{Kind: op.Kind, Algorithm: p.Algorithm, Type: op.Type, Reduce: op.Reduce, Size: p.Size, Chunk: p.Chunk,
		Pieces: p.Pieces, Cells: p.Cells, Sets: p.Sets(), Even: p.Even, Longest: longest,
		InputBlocks: p.InputBlocks(), OutputBlocks: p.OutputBlocks()}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, runner.SendRecvStep{Op: stepOps[s.Op], Lag: s.Lag, Peer: s.Peer, Channel: s.Channel,
			MessageFirst: s.MessageFirst, From: regions(s.From), To: regions(s.To)})
	}
	return runner.NewSendRecvProgram(out)
}

// regions translates regions to those of the runner.
func regions(list []plan.Region) []runner.Region {
	out := make([]runner.Region, len(list))
	for i, r := range list {
		out[i] = runner.Region{Space: spaces[r.Space], Cell: r.Cell, Block: r.Block, First: r.First, Count: r.Count}
	}
	return out
}
