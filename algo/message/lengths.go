// Where the bytes of a region lie: the arithmetic that makes plans parametric in length.

package message

import "sagecomm/internal/coll"

// Lengths are the bytes that a collective moves.
type Lengths struct {
	Bytes uint64 // of the flat buffer, or of each block, where Blocks is nil
	// Blocks are the bytes of blocks that differ: of each rank's block; for all_to_all of what rank 0 has for each
	// rank, then of what rank 1 has, and so on.
	Blocks []uint64
}

// block is the length of the block that a region is a part of.
func (p *Plan) block(l Lengths, r Region) uint64 {
	switch {
	case l.Blocks == nil || p.Kind == coll.Barrier:
		return l.Bytes
	case p.Kind != coll.AllToAll:
		return l.Blocks[r.Block]
	case r.Space == Input:
		return l.Blocks[p.Rank*p.Size+r.Block]
	default:
		return l.Blocks[r.Block*p.Size+p.Rank]
	}
}

// Extent returns where a region begins in chunk k, counted from the beginning of its block (of its cell, in Scratch),
// and how long it is.
func (p *Plan) Extent(r Region, k uint64, l Lengths) (at, bytes uint64) {
	length, chunk := p.block(l, r), uint64(p.Chunk)
	begin := min(k*chunk, length)
	at, bytes = p.piece(r, min(length-begin, chunk))
	if r.Space != Scratch {
		at += begin
	}
	return at, bytes
}

// piece is where a region lies in a chunk of n bytes.
func (p *Plan) piece(r Region, n uint64) (at, bytes uint64) {
	units := (n + Unit - 1) / Unit
	each, more := units/uint64(p.Pieces), units%uint64(p.Pieces)
	start := func(piece int) uint64 { return min((uint64(piece)*each+min(uint64(piece), more))*Unit, n) }
	at = start(r.First)
	return at, start(r.First+r.Count) - at
}

// bytes is the length of several regions in chunk k.
func (p *Plan) bytes(regions []Region, k uint64, l Lengths) (sum uint64) {
	for _, r := range regions {
		_, n := p.Extent(r, k, l)
		sum += n
	}
	return sum
}

// sameUnits says whether two lists of regions are cut alike in chunk k: as many bytes, and the same ones in the same
// unit. Units are whole but for the last one of a block.
func sameUnits(p *Plan, a []Region, q *Plan, b []Region, k uint64, l Lengths) bool {
	next := func(p *Plan, regions *[]Region, at *uint64) (end bool) {
		for len(*regions) > 0 {
			_, n := p.Extent((*regions)[0], k, l)
			*regions, *at = (*regions)[1:], *at+n
			if n%Unit != 0 {
				return false
			}
		}
		return true
	}
	for m, n := uint64(0), uint64(0); ; {
		over, also := next(p, &a, &m), next(q, &b, &n)
		if m != n || over != also {
			return false
		}
		if over {
			return true
		}
	}
}

// longest is the length of the longest block that regions are a part of, which messages tell beside their own.
func longest(p *Plan, regions []Region, l Lengths) (longest uint64) {
	for _, r := range regions {
		longest = max(longest, p.block(l, r))
	}
	return longest
}

// Chunks is how many chunks the plan's rank goes through: as many as its longest block has, and at least one. A barrier
// has no length.
func (p Plan) Chunks(l Lengths) uint64 {
	if p.Kind == coll.Barrier {
		return 1
	}
	longest := l.Bytes
	if l.Blocks != nil {
		longest = 0
		for b := range p.Size {
			longest = max(longest, p.block(l, Region{Space: Input, Block: b}), p.block(l, Region{Space: Output, Block: b}))
		}
	}
	return chunksOf(longest, p.Chunk)
}

// chunksOf is how many chunks so many bytes have.
func chunksOf(bytes uint64, chunk int) uint64 {
	if bytes == 0 {
		return 1
	}
	return 1 + (bytes-1)/uint64(chunk)
}

// moves is what a step moves in chunk k.
func (p *Plan) moves(s *Step, k uint64, l Lengths) uint64 {
	if s.Op == Send {
		return p.bytes(s.From, k, l)
	}
	return p.bytes(s.To, k, l)
}

// idle says whether a step is left out in chunk k, in which it would move so many bytes: it has nothing to move, and
// the ranks have met in chunk 0.
func (s *Step) idle(k, bytes uint64) bool { return bytes == 0 && (k > 0 || s.Op > RecvReduce) }
