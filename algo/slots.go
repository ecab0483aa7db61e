// Tables of the plans of boards.

package algo

import (
	"sort"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// grades set the chunk by length, before the algorithm is chosen: one chunk up to a slot of the small lane, and 128 KiB
// beyond. Smaller chunks let copies and waits overlap more, and were slower all the same: at 64 KiB four chunks of 16
// KiB took 22 us and one took 15 us, since the flags of a chunk cost a microsecond (docs/measured.md). Larger ones
// differ by less than 5 % either way, and their slots fill a second-level cache of 1 MiB.
var grades = []grade{
	{plan.SmallSlotBytes, plan.SmallSlotBytes},
	{NoLimit, 128 << 10},
}

// grade is a range of lengths with one chunk.
type grade struct {
	upTo  uint64
	chunk int
}

// gradesOf are the grades of a kind. Where a slot holds a chunk of each block, blocks have as much of it as there is:
// with half of that, reduce_scatter and all_to_all among 4 ranks took 5 and 3 % longer on the average of 64 KiB to 64
// MiB (docs/measured.md), for their flags. The small one goes where blocks would have none. An all_to_all begins in
// the small lane in any case, and a barrier has no length.
func gradesOf(kind coll.Kind, size int) []grade {
	if kind == coll.Barrier {
		return []grade{{NoLimit, plan.SmallSlotBytes}}
	}
	var list []grade
	for i, g := range grades {
		lane := plan.LargeSlots
		if i == 0 {
			lane = plan.SmallSlots
		}
		most := lane.MaxChunk(kind, size)
		if most < lane.Bytes() {
			g.chunk = most
		}
		if lane == plan.SmallSlots {
			g.upTo = uint64(most)
		}
		if most == 0 || lane == plan.SmallSlots && kind == coll.AllToAll {
			continue
		}
		list = append(list, g)
	}
	return list
}

// gradeOf is the grade of a length.
func gradeOf(kind coll.Kind, size int, bytes uint64) grade {
	list := gradesOf(kind, size)
	return list[sort.Search(len(list)-1, func(i int) bool { return bytes <= list[i].upTo })]
}

// class is that of an algorithm of boards in the grade.
func (g grade) class(kind coll.Kind, algorithm string) Class {
	c := Class{UpTo: g.upTo, Algorithm: algorithm, Transport: Slots, Slots: plan.LargeSlots, Chunk: g.chunk}
	if kind == coll.Barrier || algorithm == shmplan.OneShot && g.upTo <= plan.SmallSlotBytes {
		c.Slots = plan.SmallSlots
	}
	return c
}

// boards predicts which plan of boards is the cheapest.
type slotPredictor struct {
	size  int
	link  cost.Memory
	known map[slotKey]*cost.SlotPricer
}

type slotKey struct {
	kind      coll.Kind
	algorithm string
	lane      plan.Slots
	chunk     int
}

func newSlotPredictor(size int, link cost.Memory) slotPredictor {
	return slotPredictor{size, link, map[slotKey]*cost.SlotPricer{}}
}

// predict makes the table of a kind.
func (b slotPredictor) predict(kind coll.Kind) []Class {
	var table []Class
	low := uint64(0) // first length of the class
	for _, g := range gradesOf(kind, b.size) {
		for low <= g.upTo {
			// Classes end at multiples of 64 bytes and are judged there.
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

// best is the cheapest algorithm for a length in a grade.
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

func (b slotPredictor) pricer(kind coll.Kind, c Class) (*cost.SlotPricer, error) {
	key := slotKey{kind, c.Algorithm, c.Slots, c.Chunk}
	if known := b.known[key]; known != nil {
		return known, nil
	}
	plans, err := shmplan.Roles(kind, c.Algorithm, shmplan.Place{Size: b.size, Slots: c.Slots, Chunk: c.Chunk})
	if err != nil {
		return nil, err
	}
	b.known[key] = cost.NewSlotPricer(plans, b.link)
	return b.known[key], nil
}

func (b slotPredictor) price(kind coll.Kind, c Class, bytes uint64) cost.Femto {
	p, err := b.pricer(kind, c)
	if err != nil {
		return cost.Never
	}
	return p.Price(bytes)
}

// lastWith looks for the end of the range, from low on (a multiple of 64) and within the grade, in which an algorithm
// stays the best: it doubles the length until another one wins, then halves the interval down to 64 bytes. Lengths
// beyond the horizon go with the last one looked at.
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
