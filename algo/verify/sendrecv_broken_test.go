package verify

import (
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

func ringOf(t *testing.T, size int) []plan.SendRecvPlan {
	return buildAll(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: size, Chunk: 4 * plan.Unit})
}

// Wrong plans are rejected with an error that shows where they are wrong.
func TestBrokenSendRecvPlansAreRejected(t *testing.T) {
	ring := func() []plan.SendRecvPlan { return ringOf(t, 4) }
	edit := func(plans []plan.SendRecvPlan, rank, step int, change func(*plan.Step)) []plan.SendRecvPlan {
		change(&plans[rank].Steps[step])
		return plans
	}
	insert := func(plans []plan.SendRecvPlan, rank, step int, with ...plan.Step) []plan.SendRecvPlan {
		s := plans[rank].Steps
		plans[rank].Steps = append(append(append([]plan.Step{}, s[:step]...), with...), s[step:]...)
		return resettle(plans)
	}
	last := func(plans []plan.SendRecvPlan, rank, keep int) []plan.SendRecvPlan {
		plans[rank].Steps = plans[rank].Steps[:keep]
		return plans
	}
	for _, c := range []struct {
		name  string
		plans []plan.SendRecvPlan
		want  []string
	}{
		{"a receive is missing", last(ring(), 1, 11),
			[]string{"all_reduce ring, 4 ranks, 256 bytes, chunk 256: deadlock: rank 0, at the end waits until rank 1 has taken the message of chunk 0, step 10"}},
		{"a send is missing", edit(ring(), 2, 10, func(s *plan.Step) { *s = plan.Step{Op: plan.Copy} }),
			[]string{"deadlock: rank 3, chunk 0, step 11 (recv) waits for a message in channel 0 from rank 2"}},
		{"a message comes twice", insert(ring(), 1, 10, plan.Step{Op: plan.Send, Peer: 2, From: pieces(plan.Output, 0, 1)}),
			[]string{"nobody has taken the message of rank 1, chunk 0, step 11 to rank 2"}},
		{"all receive first", func() []plan.SendRecvPlan {
			plans := ring()
			for r := range plans {
				s := plans[r].Steps
				s[0], s[1] = s[1], s[0]
			}
			return resettle(plans)
		}(), []string{"deadlock: rank 0, chunk 0, step 0 (recv_reduce) waits for a message in channel 0 from rank 3", "and 1 rank more"}},
		{"two sends before a receive", func() []plan.SendRecvPlan {
			plans := ring()
			for r := range plans {
				s := plans[r].Steps
				plans[r].Steps = append([]plan.Step{s[0]}, s...)
			}
			return resettle(plans)
		}(), []string{"deadlock: rank 0, chunk 0, step 1 (send) waits for room in channel 0 to rank 1"}},
		{"a send's bytes are overwritten", edit(ring(), 3, 7, func(s *plan.Step) { s.After = nil }),
			[]string{"rank 3, chunk 0, step 7 (recv): overwrites what the message of chunk 0, step 0 to rank 0 may still be read from"}},
		{"a contribution is left out", edit(ring(), 2, 1, func(s *plan.Step) { *s = plan.Step{Op: plan.Recv, Peer: 1, To: s.To} }),
			[]string{"rank 0, at the end: unit 1 of block 0 of the output: it holds", "of unit 1 of block 0, which lacks rank 2"}},
		{"a contribution comes twice", insert(ring(), 2, 2, plan.Step{Op: plan.Reduce, From: pieces(plan.Input, 1, 1), To: pieces(plan.Output, 1, 1)}),
			[]string{"rank 2, chunk 0, step 2 (reduce): reduces 1 + 2 of unit 1 of block 0 with 2 of unit 1 of block 0: rank 2's contribution is in both"}},
		{"a wrong piece is reduced", edit(ring(), 2, 1, func(s *plan.Step) { s.From = pieces(plan.Input, 0, 1) }),
			[]string{"rank 2, chunk 0, step 1 (recv_reduce): reduces 1 of unit 1 of block 0 with 2 of unit 0 of block 0"}},
		{"a wrong piece is sent", edit(ring(), 2, 10, func(s *plan.Step) { s.From = pieces(plan.Output, 2, 1) }),
			[]string{"rank 3, at the end: unit 1 of block 0 of the output: it holds"}},
		{"a piece is read before it is written", edit(ring(), 1, 2, func(s *plan.Step) { s.From = pieces(plan.Output, 1, 1) }),
			[]string{"rank 1, chunk 0, step 2 (send): reads unit 0 of its bytes, which was never written"}},
		{"a piece never arrives", func() []plan.SendRecvPlan {
			plans := edit(ring(), 1, 11, func(s *plan.Step) { s.To = pieces(plan.Scratch, 3, 1) })
			plans[1].Cells = 1
			return plans
		}(),
			[]string{"rank 1, at the end: unit 3 of block 0 of the output: it holds (3 + 0) + 1 of unit 3 of block 0, which lacks rank 2"}},
		{"ranks reduce in different orders", func() []plan.SendRecvPlan {
			plans := buildAll(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: 2, Chunk: 4 * plan.Unit})
			for r := range plans {
				cell := []plan.Region{{Space: plan.Scratch, Count: 2}}
				plans[r].Pieces, plans[r].Cells, plans[r].Steps = 2, 1, []plan.Step{
					{Op: plan.Send, Peer: 1 - r, From: pieces(plan.Input, 0, 2)},
					{Op: plan.RecvReduce, Peer: 1 - r, From: pieces(plan.Input, 0, 2), To: cell},
					{Op: plan.Copy, From: cell, To: pieces(plan.Output, 0, 2)},
				}
				plan.AddDependencies(&plans[r])
			}
			return plans
		}(), []string{"rank 1, at the end: unit 0 of block 0 of the output: it holds 1 + 0 of unit 0 of block 0, rank 0 has 0 + 1 of unit 0 of block 0: the bits may differ"}},
		{"lengths do not agree", edit(ring(), 1, 1, func(s *plan.Step) { s.From, s.To = pieces(plan.Input, 0, 2), pieces(plan.Output, 0, 2) }),
			[]string{"rank 1, chunk 0, step 1 (recv_reduce): expects 128 bytes, the message of rank 0, chunk 0, step 0 to rank 1 has 64"}},
		{"operands of different lengths", edit(ring(), 1, 1, func(s *plan.Step) { s.From = pieces(plan.Input, 0, 2) }),
			[]string{"rank 1, chunk 0, step 1 (recv_reduce): reduces 1 units with 2"}},
		{"a copy that is too long", insert(ring(), 1, 0, plan.Step{Op: plan.Copy, From: pieces(plan.Input, 0, 1), To: pieces(plan.Output, 0, 2)}),
			[]string{"rank 1, chunk 0, step 0 (copy): writes 1 units more than there are"}},
		{"a copy that is too short", insert(ring(), 1, 0, plan.Step{Op: plan.Copy, From: pieces(plan.Input, 0, 2), To: pieces(plan.Output, 0, 1)}),
			[]string{"rank 1, chunk 0, step 0 (copy): has 1 units more than it writes"}},
		{"a message that nobody takes", func() []plan.SendRecvPlan {
			plans := ring()
			plans[0].Steps = append(plans[0].Steps, plan.Step{Op: plan.Send, Peer: 2})
			return plans
		}(), []string{"deadlock: rank 0, at the end waits until rank 2 has taken the message of chunk 0, step 12; nobody has taken the message of rank 0, chunk 0, step 12 to rank 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rejected(t, CheckSendRecv(c.plans, plan.Lengths{Bytes: 4 * plan.Unit}), c.want...)
		})
	}
}

// resettle computes the dependencies of changed plans.
func resettle(plans []plan.SendRecvPlan) []plan.SendRecvPlan {
	for r := range plans {
		for i := range plans[r].Steps {
			plans[r].Steps[i].After = nil
		}
		plan.AddDependencies(&plans[r])
	}
	return plans
}
