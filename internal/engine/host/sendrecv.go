package host

import (
	"sagecomm/algo/message"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

var stepOps = map[message.Op]uint8{
	message.Send: runner.StepSend, message.Recv: runner.StepRecv, message.RecvReduce: runner.StepRecvReduce,
	message.Reduce: runner.StepReduce, message.Copy: runner.StepCopy,
}

var spaces = map[message.Space]int{message.Input: runner.Input, message.Output: runner.Output, message.Scratch: runner.Scratch}

// CompileSendRecv makes the program that carries out a plan of messages for calls like op. Flows copy, so that what a step
// overwrites was taken long before: [message.Step.After] has nothing to say here.
func CompileSendRecv(p message.Plan, op coll.Op) (runner.Compiled, error) {
	out := runner.SendRecvProgram{Kind: op.Kind, Algorithm: p.Algorithm, Type: op.Type, Reduce: op.Reduce, Size: p.Size, Chunk: p.Chunk,
		Pieces: p.Pieces, Cells: p.Cells, Sets: p.Sets(), Even: p.Even,
		InputBlocks: p.InputBlocks(), OutputBlocks: p.OutputBlocks()}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, runner.SendRecvStep{Op: stepOps[s.Op], Lag: s.Lag, Peer: s.Peer, Channel: s.Channel,
			MessageFirst: s.MessageFirst, From: regions(s.From), To: regions(s.To)})
	}
	return runner.NewSendRecvProgram(out)
}

func regions(list []message.Region) []runner.Region {
	out := make([]runner.Region, len(list))
	for i, r := range list {
		out[i] = runner.Region{Space: spaces[r.Space], Cell: r.Cell, Block: r.Block, First: r.First, Count: r.Count}
	}
	return out
}
