package verify

import (
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

func TestPlansThatAreNoPlans(t *testing.T) {
	of := func(rank, size int) sendrecv.Place { return sendrecv.Place{Rank: rank, Size: size, Chunk: 256} }
	for _, c := range []struct {
		change func(*plan.SendRecvPlan)
		want   string
	}{
		{func(p *plan.SendRecvPlan) { p.Kind = coll.Send }, "it is no collective"},
		{func(p *plan.SendRecvPlan) { p.Size = 0 }, "a group has at least one rank"},
		{func(p *plan.SendRecvPlan) { p.Rank = 4 }, "rank is outside the group"},
		{func(p *plan.SendRecvPlan) { p.Root = -1 }, "root -1 is outside the group"},
		{func(p *plan.SendRecvPlan) { p.Chunk = 100 }, "chunk of 100 bytes, expected a multiple of 64"},
		{func(p *plan.SendRecvPlan) { p.Pieces = 0 }, "chunks of 0 pieces"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].Op = plan.Copy + 1 }, "step 3 (unknown op): there is no such op"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].Lag = -1 }, "step 3 (recv_reduce): lag -1 is negative"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].Peer = 1 }, "step 3 (recv_reduce): peer 1 is this rank or outside the group"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].After = []int{4} }, "step 3 (recv_reduce): step 4, which it waits for, is no earlier send"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].To[0].Space = plan.Input }, "step 3 (recv_reduce): the input is not written to"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].To[0].Space = 9 }, "to unknown memory"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].To[0].Count = 5 }, "to output pieces 3 to 8, a chunk has 4"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].From[0].Block = 1 }, "from input block 1, there is only 0"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].From[0].Space = plan.Scratch }, "from scratch cell 0, there are 0"},
		{func(p *plan.SendRecvPlan) { p.Steps[3].From[0].Cell = 1 }, "from cell 1 of the input, which has none"},
		{func(p *plan.SendRecvPlan) {
			p.Kind = coll.AllGather
			p.Steps[0].From[0].Block = 1
			p.Steps[1].From[0].Block = 1
			p.Steps[1].To[0].Block = 4
		}, "to output block 4, there is one for each of 4 ranks"},
	} {
		p := sendrecv.RingAllReduce(of(1, 4))
		c.change(&p)
		rejected(t, p.Validate(), c.want)
	}
	if _, err := CheckSendRecvCall(SendRecvCall{}, 1); err == nil {
		t.Error("no plans: accepted")
	}
	swapped := ringOf(t, 3)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	rejected(t, CheckSendRecv(swapped, plan.Lengths{}), "the plan in place 0 is that of rank 1")
	other := ringOf(t, 3)
	other[2].Chunk = 512
	rejected(t, CheckSendRecv(other, plan.Lengths{}), "the plan of rank 2 (all_reduce ring, size 3, root 0, chunk 512, 3 pieces) does not go with that of rank 0")
	invalid := ringOf(t, 3)
	invalid[2].Steps[0].Peer = 2
	rejected(t, CheckSendRecv(invalid, plan.Lengths{}), "rank 2 of 3: step 0 (send): peer 2")
}
