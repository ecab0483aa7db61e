package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// A broken plan of each collective is rejected; among them are plans with lags, channels and scratch memory.
func TestABrokenPlanOfEachKindIsRejected(t *testing.T) {
	const size, root = 5, 1
	for _, c := range []struct {
		kind   coll.Kind
		name   string
		breaks func([]plan.SendRecvPlan)
		want   string
	}{
		{coll.Broadcast, sendrecv.Binomial, func(p []plan.SendRecvPlan) { p[3].Steps[0].To = pieces(plan.Scratch, 0, 1); p[3].Cells = 1 },
			"broadcast binomial, 5 ranks, 100 bytes, root 1, chunk 128: rank 3, chunk 0, step 1 (send): reads unit 0 of its bytes, which was never written"},
		{coll.Broadcast, sendrecv.Chain, func(p []plan.SendRecvPlan) { p[0].Steps = nil },
			"broadcast chain, 5 ranks, 100 bytes, root 1, chunk 128: deadlock: rank 4, at the end waits until rank 0 has taken the message of chunk 0, step 1; nobody has taken the message of rank 4, chunk 0, step 1 to rank 0"},
		{coll.Broadcast, sendrecv.DoubleTree, func(p []plan.SendRecvPlan) { p[2].Steps[0].To[0].First = 1 },
			"rank 2"},
		{coll.AllGather, sendrecv.Ring, func(p []plan.SendRecvPlan) { p[2].Steps[2].From[0] = p[2].Steps[0].From[0] },
			"rank 0, at the end: unit 0 of block 1 of the output: it holds 2 of unit 0 of block 2, expected 1 of unit 0 of block 1"},
		{coll.AllGather, sendrecv.Direct, func(p []plan.SendRecvPlan) { p[2].Steps = p[2].Steps[:len(p[2].Steps)-1] },
			"all_gather direct, 5 ranks, 100 bytes, chunk 128: rank 2, at the end: unit 0 of block 2 of the output was never written"},
		{coll.ReduceScatter, sendrecv.Direct, func(p []plan.SendRecvPlan) { p[4].Steps[5].Op = plan.Recv; p[4].Steps[5].From = nil },
			"rank 4, at the end: unit 0 of block 4 of the output: it holds"},
		{coll.ReduceScatter, sendrecv.Ring, func(p []plan.SendRecvPlan) { p[4].Steps[5].To[0].Cell = 1; p[4].Steps[6].From[0].Cell = 1 },
			"rank 4, chunk 0, step 5 (recv_reduce): overwrites what the message of chunk 0, step 4 to rank 0 may still be read from"},
		{coll.ReduceScatter, sendrecv.Ring, func(p []plan.SendRecvPlan) { p[4].Steps[7].To[0] = p[4].Steps[1].To[0]; p[4].Steps[7].After = []int{6} },
			"rank 4, at the end: unit 0 of block 4 of the output was never written"},
		{coll.Reduce, sendrecv.Binomial, func(p []plan.SendRecvPlan) {
			p[2].Steps = append(p[2].Steps, plan.Step{Op: plan.Copy, From: pieces(plan.Input, 0, 1), To: pieces(plan.Output, 0, 1)})
		},
			"reduce binomial, 5 ranks, 100 bytes, root 1, chunk 128: rank 2, at the end: a rank that is not the root wrote its output"},
		{coll.Reduce, sendrecv.Chain, func(p []plan.SendRecvPlan) { p[1].Steps[0].Op = plan.Recv; p[1].Steps[0].From = nil },
			"rank 1, at the end: unit 0 of block 0 of the output: it holds 2 + (3 + (0 + 4)) of unit 0 of block 0, which lacks rank 1"},
		{coll.Gather, sendrecv.Binomial, func(p []plan.SendRecvPlan) { r := p[1].Steps[1].To; r[0], r[1] = r[1], r[0] },
			"rank 1, at the end: unit 0 of block 3 of the output: it holds 4 of unit 0 of block 4, expected 3 of unit 0 of block 3"},
		{coll.Scatter, sendrecv.Direct, func(p []plan.SendRecvPlan) { p[1].Steps[0].From[0].Block = 4 },
			"rank 2, at the end: unit 0 of block 2 of the output: it holds 1 of unit 0 of block 4, expected 1 of unit 0 of block 2"},
		{coll.AllToAll, sendrecv.Pairwise, func(p []plan.SendRecvPlan) { p[3].Steps[0].From[0].Block = 2 },
			"rank 4, at the end: unit 0 of block 3 of the output: it holds 3 of unit 0 of block 2, expected 3 of unit 0 of block 4"},
		{coll.AllToAll, sendrecv.Bruck, func(p []plan.SendRecvPlan) { p[3].Steps[2].From[1].Cell ^= 1 },
			"rank 3, chunk 0, step 2 (send): reads unit"},
		{coll.Barrier, sendrecv.Dissemination, func(p []plan.SendRecvPlan) {
			p[2].Steps[3].Peer = 1
			p[1].Steps = append(p[1].Steps, plan.Step{Op: plan.Send, Peer: 2})
		},
			"deadlock: rank 2, chunk 0, step 3 (recv) waits for a message in channel 0 from rank 1; rank 1, chunk 0, step 5 (recv) waits for a message in channel 0 from rank 2"},
		{coll.Barrier, sendrecv.Binomial, func(p []plan.SendRecvPlan) {
			p[0].Steps = p[0].Steps[:2]
			p[4].Steps = p[4].Steps[:0]
			for _, r := range []int{1, 2, 3} {
				p[r].Steps = nil
			}
			p[1].Steps, p[2].Steps = []plan.Step{{Op: plan.Send, Peer: 0}}, []plan.Step{{Op: plan.Send, Peer: 0}}
		}, "barrier binomial, 5 ranks, 100 bytes, chunk 128: rank 0, at the end: it may leave before rank 3 has entered"},
	} {
		t.Run(c.kind.String()+" "+c.name, func(t *testing.T) {
			for _, f := range families {
				if f.kind == c.kind && f.name == c.name {
					plans := buildAll(t, f, sendrecv.Place{Size: size, Root: root, Chunk: 2 * plan.Unit})
					require.NoError(t, CheckSendRecv(plans, plan.Lengths{Bytes: 100}))
					c.breaks(plans)
					rejected(t, CheckSendRecv(plans, plan.Lengths{Bytes: 100}), c.want)
				}
			}
		})
	}
}

// Later chunks use scratch cells again, and a rank waits for messages that it sent out of them. Without that wait, or
// with fewer sets of cells than chunks in flight, bytes would be overwritten. A plan's lags determine the number of
// sets.
func TestScratchCellsAreUsedAgain(t *testing.T) {
	plans := buildAll(t, family{coll.Reduce, sendrecv.Chain}, sendrecv.Place{Size: 4, Chunk: plan.Unit})
	if got := plans[2].Sets(); got != 2 {
		t.Errorf("%d sets", got)
	}
	r := newSendRecvRun(SendRecvCall{Plans: plans, Lengths: plan.Lengths{Bytes: 9 * plan.Unit}}, 3, newTrees(len(plans)))
	for _, a := range r.ranks {
		a.fromScratch = nil
	}
	rejected(t, r.finish(), "overwrites what the message of chunk 0, step 1 to rank")
}

func TestUnevenBlocksNeedAnAlgorithmForThem(t *testing.T) {
	plans := buildAll(t, family{coll.AllToAll, sendrecv.Bruck}, sendrecv.Place{Size: 2, Chunk: plan.Unit})
	rejected(t, CheckSendRecv(plans, plan.Lengths{Blocks: []uint64{1, 2, 3, 4}}), "all_to_all bruck, 2 ranks, blocks [1 2 3 4], chunk 64: the algorithm needs blocks of equal length")
}

// The checker works with units and reads all bytes before it writes. Programs do neither, so it rejects blocks whose
// units differ and moves that overlap.
func TestWhatProgramsCannotDoIsRejected(t *testing.T) {
	gather := func(name string, size int) []plan.SendRecvPlan {
		for _, f := range families {
			if f.kind == coll.AllGather && f.name == name {
				return buildAll(t, f, sendrecv.Place{Size: size, Chunk: 4 * plan.Unit})
			}
		}
		t.Fatal(name)
		return nil
	}
	cell := gather(sendrecv.Ring, 3)
	cell[1].Cells = 1
	cell[1].Steps = append(cell[1].Steps, plan.Step{Op: plan.Copy, From: []plan.Region{{Space: plan.Input, Block: 1, Count: cell[1].Pieces}},
		To: []plan.Region{{Space: plan.Scratch, Block: 2, Count: cell[1].Pieces}}})
	rejected(t, CheckSendRecv(cell, plan.Lengths{Blocks: []uint64{65, 70, 100}}),
		"all_gather ring, 3 ranks, blocks [65 70 100], chunk 256: rank 1, chunk 0, step 5 (copy): reads 70 bytes and writes 100")

	swapped := gather(sendrecv.Bruck, 4)
	for i, s := range swapped[2].Steps {
		if n := len(s.To); s.Op == plan.Recv && n == 2 {
			swapped[2].Steps[i].To[0], swapped[2].Steps[i].To[1] = s.To[1], s.To[0]
		}
	}
	rejected(t, CheckSendRecv(swapped, plan.Lengths{Blocks: []uint64{65, 100, 100, 66}}),
		"rank 2, chunk 0, step", "takes the blocks of the message of rank")

	for name, to := range map[string][]plan.Region{
		"there and back": {{Space: plan.Output, First: 1, Count: 1}, {Space: plan.Output, First: 0, Count: 1}},
		"one further":    {{Space: plan.Output, First: 1, Count: 2}},
	} {
		turned := ringOf(t, 4)
		from := []plan.Region{{Space: plan.Output, First: 0, Count: 2}}
		turned[0].Steps = append(turned[0].Steps, plan.Step{Op: plan.Copy, From: from, To: to})
		resettle(turned)
		t.Run(name, func(t *testing.T) {
			rejected(t, CheckSendRecv(turned, plan.Lengths{Bytes: 4 * plan.Unit}), "rank 0, chunk 0, step 12 (copy): reads what it writes elsewhere")
		})
	}
}
