// Plans that are wrong are rejected, with a message that shows where.

package message

import (
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

func ringOf(t *testing.T, size int) []Plan {
	return buildAll(t, family{coll.AllReduce, Ring, RingAllReduce}, Place{Size: size, Chunk: 4 * Unit})
}

func TestBrokenPlansAreRejected(t *testing.T) {
	ring := func() []Plan { return ringOf(t, 4) }
	edit := func(plans []Plan, rank, step int, change func(*Step)) []Plan {
		change(&plans[rank].Steps[step])
		return plans
	}
	insert := func(plans []Plan, rank, step int, with ...Step) []Plan {
		s := plans[rank].Steps
		plans[rank].Steps = append(append(append([]Step{}, s[:step]...), with...), s[step:]...)
		return resettle(plans)
	}
	last := func(plans []Plan, rank, keep int) []Plan {
		plans[rank].Steps = plans[rank].Steps[:keep]
		return plans
	}
	for _, c := range []struct {
		name  string
		plans []Plan
		want  []string
	}{
		{"a receive is missing", last(ring(), 1, 11),
			[]string{"all_reduce ring, 4 ranks, 256 bytes, chunk 256: deadlock: rank 0, at the end waits until rank 1 has taken the message of chunk 0, step 10"}},
		{"a send is missing", edit(ring(), 2, 10, func(s *Step) { *s = Step{Op: Copy} }),
			[]string{"deadlock: rank 3, chunk 0, step 11 (recv) waits for a message in channel 0 from rank 2"}},
		{"a message comes twice", insert(ring(), 1, 10, Step{Op: Send, Peer: 2, From: pieces(Output, 0, 1)}),
			[]string{"nobody has taken the message of rank 1, chunk 0, step 11 to rank 2"}},
		{"all receive first", func() []Plan {
			plans := ring()
			for r := range plans {
				s := plans[r].Steps
				s[0], s[1] = s[1], s[0]
			}
			return resettle(plans)
		}(), []string{"deadlock: rank 0, chunk 0, step 0 (recv_reduce) waits for a message in channel 0 from rank 3", "and 1 ranks more"}},
		{"two sends before a receive", func() []Plan {
			plans := ring()
			for r := range plans {
				s := plans[r].Steps
				plans[r].Steps = append([]Step{s[0]}, s...)
			}
			return resettle(plans)
		}(), []string{"deadlock: rank 0, chunk 0, step 1 (send) waits for room in channel 0 to rank 1"}},
		{"a send's bytes are overwritten", edit(ring(), 3, 7, func(s *Step) { s.After = nil }),
			[]string{"rank 3, chunk 0, step 7 (recv): overwrites what the message of chunk 0, step 0 to rank 0 may still be read from"}},
		{"a contribution is left out", edit(ring(), 2, 1, func(s *Step) { *s = Step{Op: Recv, Peer: 1, To: s.To} }),
			[]string{"rank 0, at the end: unit 1 of block 0 of the output: it holds", "of unit 1 of block 0, which lacks rank 2"}},
		{"a contribution comes twice", insert(ring(), 2, 2, Step{Op: Reduce, From: pieces(Input, 1, 1), To: pieces(Output, 1, 1)}),
			[]string{"rank 2, chunk 0, step 2 (reduce): reduces 1 + 2 of unit 1 of block 0 with 2 of unit 1 of block 0: rank 2's contribution is in both"}},
		{"a wrong piece is reduced", edit(ring(), 2, 1, func(s *Step) { s.From = pieces(Input, 0, 1) }),
			[]string{"rank 2, chunk 0, step 1 (recv_reduce): reduces 1 of unit 1 of block 0 with 2 of unit 0 of block 0"}},
		{"a wrong piece is sent", edit(ring(), 2, 10, func(s *Step) { s.From = pieces(Output, 2, 1) }),
			[]string{"rank 3, at the end: unit 1 of block 0 of the output: it holds"}},
		{"a piece is read before it is written", edit(ring(), 1, 2, func(s *Step) { s.From = pieces(Output, 1, 1) }),
			[]string{"rank 1, chunk 0, step 2 (send): reads unit 0 of its bytes, which was never written"}},
		{"a piece never arrives", func() []Plan {
			plans := edit(ring(), 1, 11, func(s *Step) { s.To = pieces(Scratch, 3, 1) })
			plans[1].Cells = 1
			return plans
		}(),
			[]string{"rank 1, at the end: unit 3 of block 0 of the output: it holds (3 + 0) + 1 of unit 3 of block 0, which lacks rank 2"}},
		{"ranks reduce in different orders", func() []Plan {
			plans := buildAll(t, family{coll.AllReduce, Ring, RingAllReduce}, Place{Size: 2, Chunk: 4 * Unit})
			for r := range plans {
				m := newMaker(Place{Rank: r, Size: 2, Chunk: 4 * Unit}, coll.AllReduce, Ring, 2)
				m.cell(0, 0)
				m.send(1-r, m.whole(Input)...)
				m.recvReduce(1-r, m.whole(Input), []Region{m.cell(0, 0)})
				m.copy([]Region{m.cell(0, 0)}, m.whole(Output))
				plans[r] = m.done()
			}
			return plans
		}(), []string{"rank 1, at the end: unit 0 of block 0 of the output: it holds 1 + 0 of unit 0 of block 0, rank 0 has 0 + 1 of unit 0 of block 0: the bits may differ"}},
		{"lengths do not agree", edit(ring(), 1, 1, func(s *Step) { s.From, s.To = pieces(Input, 0, 2), pieces(Output, 0, 2) }),
			[]string{"rank 1, chunk 0, step 1 (recv_reduce): expects 128 bytes, the message of rank 0, chunk 0, step 0 to rank 1 has 64"}},
		{"operands of different lengths", edit(ring(), 1, 1, func(s *Step) { s.From = pieces(Input, 0, 2) }),
			[]string{"rank 1, chunk 0, step 1 (recv_reduce): reduces 1 units with 2"}},
		{"a copy that is too long", insert(ring(), 1, 0, Step{Op: Copy, From: pieces(Input, 0, 1), To: pieces(Output, 0, 2)}),
			[]string{"rank 1, chunk 0, step 0 (copy): writes 1 units more than there are"}},
		{"a copy that is too short", insert(ring(), 1, 0, Step{Op: Copy, From: pieces(Input, 0, 2), To: pieces(Output, 0, 1)}),
			[]string{"rank 1, chunk 0, step 0 (copy): has 1 units more than it writes"}},
		{"a message that nobody takes", func() []Plan {
			plans := ring()
			plans[0].Steps = append(plans[0].Steps, Step{Op: Send, Peer: 2})
			return plans
		}(), []string{"deadlock: rank 0, at the end waits until rank 2 has taken the message of chunk 0, step 12; nobody has taken the message of rank 0, chunk 0, step 12 to rank 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rejected(t, Check(c.plans, Lengths{Bytes: 4 * Unit}), c.want...)
		})
	}
}

// resettle finds out anew which sends each step must wait for.
func resettle(plans []Plan) []Plan {
	for r := range plans {
		for i := range plans[r].Steps {
			plans[r].Steps[i].After = nil
		}
		settle(&plans[r])
	}
	return plans
}

// rejected wants an error that holds every text.
func rejected(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Error("accepted")
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v\nlacks %q", err, text)
		}
	}
}

func TestPlansThatAreNoPlans(t *testing.T) {
	of := func(rank, size int) Place { return Place{Rank: rank, Size: size, Chunk: 256} }
	for _, c := range []struct {
		change func(*Plan)
		want   string
	}{
		{func(p *Plan) { p.Kind = coll.Send }, "it is no collective"},
		{func(p *Plan) { p.Size = 0 }, "a group has at least one rank"},
		{func(p *Plan) { p.Rank = 4 }, "rank is outside the group"},
		{func(p *Plan) { p.Root = -1 }, "root -1 is outside the group"},
		{func(p *Plan) { p.Chunk = 100 }, "chunk of 100 bytes, expected a multiple of 64"},
		{func(p *Plan) { p.Pieces = 0 }, "chunks of 0 pieces"},
		{func(p *Plan) { p.Steps[3].Op = Copy + 1 }, "step 3 (unknown op): there is no such op"},
		{func(p *Plan) { p.Steps[3].Lag = -1 }, "step 3 (recv_reduce): lag -1 is negative"},
		{func(p *Plan) { p.Steps[3].Peer = 1 }, "step 3 (recv_reduce): peer 1 is this rank or outside the group"},
		{func(p *Plan) { p.Steps[3].After = []int{4} }, "step 3 (recv_reduce): step 4, which it waits for, is no earlier send"},
		{func(p *Plan) { p.Steps[3].To[0].Space = Input }, "step 3 (recv_reduce): the input is not written to"},
		{func(p *Plan) { p.Steps[3].To[0].Space = 9 }, "to unknown memory"},
		{func(p *Plan) { p.Steps[3].To[0].Count = 5 }, "to output pieces 3 to 8, a chunk has 4"},
		{func(p *Plan) { p.Steps[3].From[0].Block = 1 }, "from input block 1, there is only 0"},
		{func(p *Plan) { p.Steps[3].From[0].Space = Scratch }, "from scratch cell 0, there are 0"},
		{func(p *Plan) { p.Steps[3].From[0].Cell = 1 }, "from cell 1 of the input, which has none"},
		{func(p *Plan) {
			p.Kind = coll.AllGather
			p.Steps[0].From[0].Block = 1
			p.Steps[1].From[0].Block = 1
			p.Steps[1].To[0].Block = 4
		}, "to output block 4, there is one for each of 4 ranks"},
	} {
		p := RingAllReduce(of(1, 4))
		c.change(&p)
		rejected(t, p.Validate(), c.want)
	}
	if _, err := CheckCall(Call{}, 1); err == nil {
		t.Error("no plans: accepted")
	}
	swapped := ringOf(t, 3)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	rejected(t, Check(swapped, Lengths{}), "the plan in place 0 is that of rank 1")
	other := ringOf(t, 3)
	other[2].Chunk = 512
	rejected(t, Check(other, Lengths{}), "the plan of rank 2 (all_reduce ring, size 3, root 0, chunk 512, 3 pieces) does not go with that of rank 0")
	invalid := ringOf(t, 3)
	invalid[2].Steps[0].Peer = 2
	rejected(t, Check(invalid, Lengths{}), "rank 2 of 3: step 0 (send): peer 2")
}

func TestBuildRefuses(t *testing.T) {
	_, err := Build(coll.AllReduce, "rign", Place{Size: 2, Chunk: 64})
	rejected(t, err, `all_reduce: unknown algorithm "rign", there are: ring`)
	_, err = Build(coll.AllReduce, Ring, Place{Rank: 2, Size: 2, Chunk: 64})
	rejected(t, err, "all_reduce ring: rank 2, root 0 in a group of 2")
	_, err = Build(coll.AllReduce, Ring, Place{Size: 2, Chunk: 65})
	rejected(t, err, "chunk of 65 bytes")
}
