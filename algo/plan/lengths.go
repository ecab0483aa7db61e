package plan

import (
	"slices"

	"sagecomm/internal/coll"
)

// Lengths gives the bytes that a collective moves.
type Lengths struct {
	Bytes uint64 // length of the flat buffer, or of each block if Blocks is nil
	// Blocks gives the lengths of blocks that differ, in rank order. For all_to_all it begins with the blocks that rank 0
	// has for each rank, followed by those that rank 1 has, and so on.
	Blocks []uint64
}

// Longest returns the length of the longest block.
func (l Lengths) Longest() uint64 {
	if l.Blocks == nil {
		return l.Bytes
	}
	return slices.Max(l.Blocks)
}

// BlockBytes returns the length of the block that a region is a part of.
func (p *SendRecvPlan) BlockBytes(l Lengths, r Region) uint64 {
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

// Extent returns where a region begins in chunk k, counted from the beginning of its block (in Scratch, of its cell),
// and how long it is.
func (p *SendRecvPlan) Extent(r Region, k uint64, l Lengths) (at, bytes uint64) {
	length, chunk := p.BlockBytes(l, r), uint64(p.Chunk)
	begin := min(k*chunk, length)
	at, bytes = p.piece(r, min(length-begin, chunk))
	if r.Space != Scratch {
		at += begin
	}
	return at, bytes
}

// piece returns where a region lies in a chunk of n bytes.
func (p *SendRecvPlan) piece(r Region, n uint64) (at, bytes uint64) {
	units := (n + Unit - 1) / Unit
	each, more := units/uint64(p.Pieces), units%uint64(p.Pieces)
	start := func(piece int) uint64 { return min((uint64(piece)*each+min(uint64(piece), more))*Unit, n) }
	at = start(r.First)
	return at, start(r.First+r.Count) - at
}

// Bytes returns the length of several regions in chunk k.
func (p *SendRecvPlan) Bytes(regions []Region, k uint64, l Lengths) (sum uint64) {
	for _, r := range regions {
		_, n := p.Extent(r, k, l)
		sum += n
	}
	return sum
}

// Chunks returns how many chunks the plan's rank goes through: as many as its longest block has, and at least one. A
// barrier has no length, so it has one chunk.
func (p SendRecvPlan) Chunks(l Lengths) uint64 {
	if p.Kind == coll.Barrier {
		return 1
	}
	longest := l.Bytes
	if l.Blocks != nil {
		longest = 0
		for b := range p.Size {
			longest = max(longest, p.BlockBytes(l, Region{Space: Input, Block: b}), p.BlockBytes(l, Region{Space: Output, Block: b}))
		}
	}
	return ChunksOf(longest, p.Chunk)
}

// ChunksOf returns how many chunks a buffer of so many bytes has. An empty buffer has one.
func ChunksOf(bytes uint64, chunk int) uint64 {
	if bytes == 0 {
		return 1
	}
	return 1 + (bytes-1)/uint64(chunk)
}

// Moved returns the bytes that a step moves in chunk k.
func (p *SendRecvPlan) Moved(s *Step, k uint64, l Lengths) uint64 {
	if s.Op == Send {
		return p.Bytes(s.From, k, l)
	}
	return p.Bytes(s.To, k, l)
}

// Idle reports whether a rank leaves a step out of chunk k, in which the step would move that many bytes. It leaves out
// steps without bytes, except for the messages of chunk 0, by which ranks meet.
func (s *Step) Idle(k, bytes uint64) bool { return bytes == 0 && (k > 0 || s.Op > RecvReduce) }
