package algo

import (
	"sort"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// grades set the chunk by length, before the algorithm is chosen: one chunk up to the length of a small slot, and
// chunks of 128 KiB beyond. With smaller chunks copies and waits overlap more, and yet they are slower: for 64 KiB four
// chunks of 16 KiB took 22 us and one chunk took 15 us, since the flags of a chunk cost a microsecond
// (docs/measured.md). Larger chunks differ by less than 5 % either way, and their slots fill a second-level cache of 1
// MiB.
var grades = []grade{
	{plan.SmallSlotBytes, plan.SmallSlotBytes},
	{NoLimit, 128 << 10},
}

// grade is a range of lengths with one chunk.
type grade struct {
	upTo  uint64
	chunk int
}

// gradesOf returns the grades of a kind. Where a slot holds a chunk of each block, the chunks fill the slot: with
// chunks half as long, reduce_scatter and all_to_all among 4 ranks took 5 and 3 % longer on the average of 64 KiB to 64
// MiB (docs/measured.md), because of their flags. A grade is left out where a slot has no room for a chunk of each
// block. All_to_all has no grade of small slots, since all its exchanges begin there, and a barrier has no length.
func gradesOf(kind coll.Kind, size int) []grade {
	if kind == coll.Barrier {
		return []grade{{NoLimit, plan.SmallSlotBytes}}
	}
	var list []grade
	for i, g := range grades {
		slots := plan.LargeSlots
		if i == 0 {
			slots = plan.SmallSlots
		}
		most := slots.MaxChunk(kind, size)
		if most < slots.Bytes() {
			g.chunk = most
		}
		if slots == plan.SmallSlots {
			g.upTo = uint64(most)
		}
		if most == 0 || slots == plan.SmallSlots && kind == coll.AllToAll {
			continue
		}
		list = append(list, g)
	}
	return list
}

// gradeOf returns the grade of a length.
func gradeOf(kind coll.Kind, size int, bytes uint64) grade {
	list := gradesOf(kind, size)
	return list[sort.Search(len(list)-1, func(i int) bool { return bytes <= list[i].upTo })]
}

// class returns the class of a slot algorithm in the grade.
func (g grade) class(kind coll.Kind, algorithm string) Class {
	c := Class{UpTo: g.upTo, Algorithm: algorithm, Transport: Slots, Slots: plan.LargeSlots, Chunk: g.chunk}
	if kind == coll.Barrier || algorithm == shmplan.OneShot && g.upTo <= plan.SmallSlotBytes {
		c.Slots = plan.SmallSlots
	}
	return c
}

// slotPredictor predicts which slot plan is the cheapest.
type slotPredictor struct {
	size   int
	memory cost.Memory
	known  map[slotKey]*cost.SlotPricer
}

// slotKey identifies a pricer.
type slotKey struct {
	kind      coll.Kind
	algorithm string
	slots     plan.Slots
	chunk     int
}

func newSlotPredictor(size int, memory cost.Memory) slotPredictor {
	return slotPredictor{size, memory, map[slotKey]*cost.SlotPricer{}}
}

// predict returns the table of a kind.
func (b slotPredictor) predict(kind coll.Kind) []Class {
	var table []Class
	low := uint64(0) // first length of the class
	for _, g := range gradesOf(kind, b.size) {
		for low <= g.upTo {
			// Classes end at multiples of 64 bytes, so prices are compared there.
			from := min((low+plan.Align-1)&^(plan.Align-1), g.upTo)
			c := g.class(kind, b.best(kind, from, g))
			c.UpTo = b.lastWith(kind, c.Algorithm, from, g)
			table = append(table, c)
			if c.UpTo == NoLimit {
				return table
			}
			low = c.UpTo + 1
		}
	}
	return table
}

// best returns the cheapest algorithm for a length in a grade.
func (b slotPredictor) best(kind coll.Kind, bytes uint64, g grade) string {
	names := shmplan.Algorithms(kind)
	if len(names) == 1 {
		return names[0]
	}
	best, least := "", cost.Never
	for _, name := range names {
		if t := b.price(kind, g.class(kind, name), bytes); best == "" || t < least {
			best, least = name, t
		}
	}
	return best
}

// pricer returns the pricer of a class. It makes each pricer once.
func (b slotPredictor) pricer(kind coll.Kind, c Class) (*cost.SlotPricer, error) {
	key := slotKey{kind, c.Algorithm, c.Slots, c.Chunk}
	if known := b.known[key]; known != nil {
		return known, nil
	}
	plans, err := shmplan.Roles(kind, c.Algorithm, shmplan.Place{Size: b.size, Slots: c.Slots, Chunk: c.Chunk})
	if err != nil {
		return nil, err
	}
	b.known[key] = cost.NewSlotPricer(plans, b.memory)
	return b.known[key], nil
}

// price returns the predicted time of a class.
func (b slotPredictor) price(kind coll.Kind, c Class, bytes uint64) cost.Femto {
	p, err := b.pricer(kind, c)
	if err != nil {
		return cost.Never
	}
	return p.Price(bytes)
}

// lastWith returns the end of the range in which an algorithm stays the best. The range begins at low, a multiple of
// 64, and lies within the grade. lastWith doubles the length until another algorithm is better, then halves the
// interval down to 64 bytes. Lengths beyond the horizon belong to the last length that was priced.
func (b slotPredictor) lastWith(kind coll.Kind, name string, low uint64, g grade) uint64 {
	if len(shmplan.Algorithms(kind)) == 1 {
		return g.upTo
	}
	good := low
	for good < min(g.upTo, horizon) {
		next := min(max(plan.Align, 2*good)&^(plan.Align-1), g.upTo)
		if b.best(kind, next, g) == name {
			good = next
			continue
		}
		for next-good > plan.Align {
			middle := (good + (next-good)/2) &^ (plan.Align - 1)
			if b.best(kind, middle, g) == name {
				good = middle
			} else {
				next = middle
			}
		}
		return good
	}
	return g.upTo
}
