package sendrecv

import (
	"slices"

	"sagecomm/algo/plan"
)

// view maps the ranks and buffers of an inner plan to those of the plan that it becomes a part of.
type view struct {
	// ranks are the ranks of the inner plan's group, by their number in it.
	ranks []int
	// input and output return where a range of pieces of an inner block lies. Ranges that follow one another inside
	// follow one another outside.
	input, output func(block, first, count int) []plan.Region
}

// embed appends the steps of a smaller group's plan. A message stays one message, however many regions it consists of.
// The inner plan's cells of scratch memory are added to those in use; an inner block that is several outer blocks takes
// a cell for each of them.
func (m *maker) embed(inner plan.SendRecvPlan, v view) {
	base := m.Cells
	shape := v.output
	if plan.InputBlocks(inner.Kind) {
		shape = v.input
	}
	place := func(r plan.Region) (list []plan.Region) {
		switch r.Space {
		case plan.Input:
			return v.input(r.Block, r.First, r.Count)
		case plan.Output:
			return v.output(r.Block, r.First, r.Count)
		}
		whole := len(shape(r.Block, 0, inner.Pieces))
		for i, part := range shape(r.Block, r.First, r.Count) {
			part.Space, part.Cell = plan.Scratch, base+r.Cell*whole+i
			m.Cells = max(m.Cells, part.Cell+1)
			list = append(list, part)
		}
		return list
	}
	places := func(regions []plan.Region) (list []plan.Region) {
		for _, r := range regions {
			list = append(list, place(r)...)
		}
		return list
	}
	channel := m.channel
	lag := m.lag
	m.Steps = slices.Grow(m.Steps, len(inner.Steps))
	for _, s := range inner.Steps {
		s.From, s.To, s.After = places(s.From), places(s.To), nil
		if s.Op == plan.Copy && slices.Equal(s.From, s.To) {
			continue
		}
		if s.Op <= plan.RecvReduce {
			s.Peer = v.ranks[s.Peer]
		}
		m.lag, m.channel = lag+s.Lag, channel+s.Channel
		m.add(s)
	}
	m.lag, m.channel = lag, channel
}

// flatView returns the view of an inner plan whose flat buffer consists of pieces of the outer one, from piece first on. Each
// inner piece is width outer pieces.
func flatView(ranks []int, input, output plan.Space, first, width int) view {
	at := func(space plan.Space) func(int, int, int) []plan.Region {
		return func(_, from, count int) []plan.Region { return pieces(space, first+from*width, count*width) }
	}
	return view{ranks, at(input), at(output)}
}

// partView returns the view of an inner plan whose buffers are blocks, each of which is width pieces of the outer flat buffer.
func partView(ranks []int, input, output plan.Space, width int) view {
	at := func(space plan.Space) func(int, int, int) []plan.Region {
		return func(block, _, _ int) []plan.Region { return pieces(space, block*width, width) }
	}
	return view{ranks, at(input), at(output)}
}

// blockView returns the view of an inner plan whose buffers are blocks, each of which is some blocks of the outer buffer.
func blockView(ranks []int, input, output func(block int) []plan.Region) view {
	return view{
		ranks,
		func(block, _, _ int) []plan.Region { return input(block) },
		func(block, _, _ int) []plan.Region { return output(block) },
	}
}
