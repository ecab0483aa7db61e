package verify

import (
	"fmt"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// unitMemory holds the units of one block of a buffer, or of one scratch cell. Buffers in the same memory share it.
type unitMemory struct {
	cells  []unitValue
	posted []posted // sends that may still read them, as far as the rank knows
}

// extent is a range of units of one memory.
type extent struct {
	*unitMemory
	lo, hi uint64
}

// fill writes a rank's contribution into its input. In a broadcast or scatter only the root contributes.
func (r *sendRecvRun) fill(a *actor) {
	p := a.plan
	if (p.Kind == coll.Broadcast || p.Kind == coll.Scatter) && p.Rank != p.Root || p.Kind == coll.Barrier {
		return
	}
	blocks := []int{p.Rank}
	if plan.IsFlat(p.Kind) {
		blocks = []int{0}
	} else if plan.InputBlocks(p.Kind) {
		blocks = blocks[:0]
		for b := range p.Size {
			blocks = append(blocks, b)
		}
	}
	for _, b := range blocks {
		cells := r.memoryOf(a, plan.Region{Space: plan.Input, Block: b}, 0).cells
		for i := range cells {
			cells[i] = unitValue{r.trees.leaf(p.Rank), source{int32(b), int32(i)}}
		}
	}
}

// memoryOf returns the memory in which a region lies in chunk k.
func (r *sendRecvRun) memoryOf(a *actor, region plan.Region, k int64) *unitMemory {
	if region.Space == plan.Scratch {
		// One memory for all blocks that a cell may hold.
		at := int(k%a.sets)*a.plan.Cells + region.Cell
		if a.buffers[plan.Scratch][at] == nil {
			a.buffers[plan.Scratch][at] = r.newMemory(a.plan.Chunk / plan.Unit)
		}
		return a.buffers[plan.Scratch][at]
	}
	if m := a.buffers[region.Space][region.Block]; m != nil {
		return m
	}
	m := r.newMemory(int(units(a.plan.BlockBytes(r.call.Lengths, region))))
	a.buffers[region.Space][region.Block] = m
	p := &a.plan
	together := r.call.InPlace && p.Kind != coll.AllToAll || p.Kind == coll.Broadcast && p.Rank == p.Root
	own := plan.IsFlat(p.Kind) || region.Block == p.Rank
	rootOnly := (p.Kind == coll.Gather || p.Kind == coll.Scatter) && p.Rank != p.Root
	if together && own && !rootOnly {
		a.buffers[plan.Input][region.Block], a.buffers[plan.Output][region.Block] = m, m
	}
	return m
}

func (r *sendRecvRun) newMemory(units int) *unitMemory {
	m := &r.memories.take(1)[0]
	m.cells = r.values.take(units)
	return m
}

// extents appends the extents of regions in chunk k. It leaves out regions of no bytes.
func (r *sendRecvRun) extents(out []extent, a *actor, regions []plan.Region, k int64) []extent {
	for _, region := range regions {
		if at, n := a.plan.Extent(region, uint64(k), r.call.Lengths); n > 0 {
			out = append(out, extent{r.memoryOf(a, region, k), at / plan.Unit, units(at + n)})
		}
	}
	return out
}

// read appends the values that regions hold in chunk k.
func (r *sendRecvRun) read(out []unitValue, a *actor, regions []plan.Region, k int64) ([]unitValue, error) {
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

// write stores values into regions. It fails if a send may still read there.
func (r *sendRecvRun) write(a *actor, to []plan.Region, k int64, values []unitValue) error {
	r.places = r.extents(r.places[:0], a, to, k)
	for _, e := range r.places {
		if p := e.busy(e.lo, e.hi); p != nil {
			return fmt.Errorf("overwrites what the message of chunk %d, step %d to rank %d may still be read from",
				p.chunk, p.step, a.plan.Steps[p.step].Peer)
		}
		if n := e.hi - e.lo; n > uint64(len(values)) {
			return fmt.Errorf("writes %d units more than there are", n-uint64(len(values)))
		}
		copy(e.cells[e.lo:e.hi], values)
		values = values[e.hi-e.lo:]
	}
	if len(values) > 0 {
		return fmt.Errorf("has %d units more than it writes", len(values))
	}
	for _, region := range to {
		a.outputWritten = a.outputWritten || region.Space == plan.Output
	}
	return nil
}

// busy returns the first send of some units that the rank has not waited for, or nil.
func (m *unitMemory) busy(lo, hi uint64) *posted {
	m.posted = slices.DeleteFunc(m.posted, func(p posted) bool { return p.number <= p.channel.known })
	for i := range m.posted {
		if p := &m.posted[i]; p.lo < hi && lo < p.hi {
			return p
		}
	}
	return nil
}
