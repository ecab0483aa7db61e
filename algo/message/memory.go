// The checker's memory.

package message

import (
	"fmt"

	"sagecomm/internal/coll"
)

// memory is the units of one block of a buffer, or of one scratch cell. Buffers in the same memory share it.
type memory struct {
	cells  []value
	posted []posted // sends that may still read them, as far as the rank knows
}

// slab hands out slices of larger pieces of memory, each of which is twice as large as the one before.
type slab[T any] struct {
	free []T
	size int
}

func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.size = max(n, min(2*s.size, 4096), 16)
		s.free = make([]T, s.size)
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}

// extent is a range of units of a memory.
type extent struct {
	*memory
	lo, hi uint64
}

// fill writes a rank's contribution into its input. Of a rooted kind that gives to others only the root has one.
func (r *run) fill(a *actor) {
	p := a.plan
	if (p.Kind == coll.Broadcast || p.Kind == coll.Scatter) && p.Rank != p.Root || p.Kind == coll.Barrier {
		return
	}
	blocks := []int{p.Rank}
	if flat(p.Kind) {
		blocks = []int{0}
	} else if inputBlocks(p.Kind) {
		blocks = blocks[:0]
		for b := range p.Size {
			blocks = append(blocks, b)
		}
	}
	for _, b := range blocks {
		cells := r.memoryOf(a, Region{Space: Input, Block: b}, 0).cells
		for i := range cells {
			cells[i] = value{r.trees.leaf(p.Rank), source{int32(b), int32(i)}}
		}
	}
}

// memoryOf is where a region lies in chunk k.
func (r *run) memoryOf(a *actor, region Region, k int64) *memory {
	if region.Space == Scratch {
		// One memory for all blocks that a cell may hold.
		at := int(k%a.sets)*a.plan.Cells + region.Cell
		if a.buffers[Scratch][at] == nil {
			a.buffers[Scratch][at] = r.newMemory(a.plan.Chunk / Unit)
		}
		return a.buffers[Scratch][at]
	}
	if m := a.buffers[region.Space][region.Block]; m != nil {
		return m
	}
	m := r.newMemory(int(units(a.plan.block(r.call.Lengths, region))))
	a.buffers[region.Space][region.Block] = m
	p := &a.plan
	together := r.call.InPlace && p.Kind != coll.AllToAll || p.Kind == coll.Broadcast && p.Rank == p.Root
	own := flat(p.Kind) || region.Block == p.Rank
	rootOnly := (p.Kind == coll.Gather || p.Kind == coll.Scatter) && p.Rank != p.Root
	if together && own && !rootOnly {
		a.buffers[Input][region.Block], a.buffers[Output][region.Block] = m, m
	}
	return m
}

func (r *run) newMemory(units int) *memory {
	m := &r.memories.take(1)[0]
	m.cells = r.values.take(units)
	return m
}

// extents appends where regions lie in chunk k, those of no bytes left out.
func (r *run) extents(out []extent, a *actor, regions []Region, k int64) []extent {
	for _, region := range regions {
		if at, n := a.plan.Extent(region, uint64(k), r.call.Lengths); n > 0 {
			out = append(out, extent{r.memoryOf(a, region, k), at / Unit, units(at + n)})
		}
	}
	return out
}

// read appends what regions hold in chunk k.
func (r *run) read(out []value, a *actor, regions []Region, k int64) ([]value, error) {
	r.places = r.extents(r.places[:0], a, regions, k)
	for _, e := range r.places {
		out = append(out, e.cells[e.lo:e.hi]...)
	}
	for i, v := range out {
		if v.tree == 0 {
			return nil, fmt.Errorf("reads unit %d of its bytes, which was never written", i)
		}
	}
	return out, nil
}
