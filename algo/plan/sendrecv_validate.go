package plan

import "fmt"

// Validate checks one rank's plan by itself: its steps must name ranks, channels and memory that exist. The package
// verify proves that the plans of all ranks together are right.
func (p SendRecvPlan) Validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%v %s, rank %d of %d: %s", p.Kind, p.Algorithm, p.Rank, p.Size, fmt.Sprintf(format, args...))
	}
	switch {
	case !p.Kind.Collective():
		return refuse("it is no collective")
	case p.Size < 1:
		return refuse("a group has at least one rank")
	case p.Rank < 0 || p.Rank >= p.Size:
		return refuse("rank is outside the group")
	case p.Root < 0 || p.Root >= p.Size:
		return refuse("root %d is outside the group", p.Root)
	case p.Chunk <= 0 || p.Chunk%Unit != 0:
		return refuse("chunk of %d bytes, expected a multiple of %d", p.Chunk, Unit)
	case p.Pieces < 1:
		return refuse("chunks of %d pieces, expected at least one", p.Pieces)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if why := p.fault(s); why != "" {
			return refuse("step %d (%v): %s", i, s.Op, why)
		}
		for _, j := range s.After {
			if j < 0 || j >= len(p.Steps) || p.Steps[j].Op != Send || later(&p, i, j) != i {
				return refuse("step %d (%v): step %d, which it waits for, is no earlier send", i, s.Op, j)
			}
		}
	}
	return nil
}

// fault returns what is wrong with a step, or "".
func (p *SendRecvPlan) fault(s *Step) string {
	switch {
	case s.Op > Copy:
		return "there is no such op"
	case s.Lag < 0:
		return fmt.Sprintf("lag %d is negative", s.Lag)
	case s.Op <= RecvReduce && (s.Peer < 0 || s.Peer >= p.Size || s.Peer == p.Rank):
		return fmt.Sprintf("peer %d is this rank or outside the group", s.Peer)
	}
	for _, r := range s.From {
		if why := p.misplaced(r); why != "" {
			return "from " + why
		}
	}
	for _, r := range s.To {
		if why := p.misplaced(r); why != "" {
			return "to " + why
		}
		if r.Space == Input {
			return "the input is not written to"
		}
	}
	return ""
}

// misplaced returns why a plan cannot have this region, or "".
func (p *SendRecvPlan) misplaced(r Region) string {
	blocks := r.Space == Input && InputBlocks(p.Kind) || r.Space == Output && OutputBlocks(p.Kind) ||
		r.Space == Scratch && !IsFlat(p.Kind)
	own := 0
	if !IsFlat(p.Kind) {
		own = p.Rank
	}
	switch {
	case r.Space > Scratch:
		return "unknown memory"
	case r.First < 0 || r.Count < 0 || r.First+r.Count > p.Pieces:
		return fmt.Sprintf("%v pieces %d to %d, a chunk has %d", r.Space, r.First, r.First+r.Count, p.Pieces)
	case blocks && (r.Block < 0 || r.Block >= p.Size):
		return fmt.Sprintf("%v block %d, there is one for each of %d ranks", r.Space, r.Block, p.Size)
	case !blocks && r.Block != own:
		return fmt.Sprintf("%v block %d, there is only %d", r.Space, r.Block, own)
	case r.Space == Scratch && (r.Cell < 0 || r.Cell >= p.Cells):
		return fmt.Sprintf("scratch cell %d, there are %d", r.Cell, p.Cells)
	case r.Space != Scratch && r.Cell != 0:
		return fmt.Sprintf("cell %d of the %v, which has none", r.Cell, r.Space)
	}
	return ""
}
