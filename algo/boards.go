// Tables of the plans of boards.

package algo

import (
	"sort"

	"sagecomm/algo/board"
	"sagecomm/internal/coll"
)

// grades set the chunk by length, before the algorithm is chosen: one chunk up to a slot of the small lane, and 128 KiB
// beyond. Smaller chunks let copies and waits overlap more, and were slower all the same: at 64 KiB four chunks of 16
// KiB took 22 us and one took 15 us, since the flags of a chunk cost a microsecond (docs/measured.md). Larger ones
// differ by less than 5 % either way, and their slots fill a second-level cache of 1 MiB.
var grades = []grade{
	{board.SmallSlot, board.SmallSlot},
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
		return []grade{{NoLimit, board.SmallSlot}}
	}
	var list []grade
	for i, g := range grades {
		lane := board.LargeLane
		if i == 0 {
			lane = board.SmallLane
		}
		most := lane.MaxChunk(kind, size)
		if most < lane.SlotBytes() {
			g.chunk = most
		}
		if lane == board.SmallLane {
			g.upTo = uint64(most)
		}
		if most == 0 || lane == board.SmallLane && kind == coll.AllToAll {
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
	c := Class{UpTo: g.upTo, Algorithm: algorithm, Transport: Boards, Lane: board.LargeLane, Chunk: g.chunk}
	if kind == coll.Barrier || algorithm == board.OneShotName && g.upTo <= board.SmallSlot {
		c.Lane = board.SmallLane
	}
	return c
}

// boards predicts which plan of boards is the cheapest.
type boards struct {
	size  int
	link  board.Link
	known map[boardKey]*board.Pricer
}

type boardKey struct {
	kind      coll.Kind
	algorithm string
	lane      board.Lane
	chunk     int
}

func newBoards(size int, link board.Link) boards {
	return boards{size, link, map[boardKey]*board.Pricer{}}
}

// predict makes the table of a kind.
func (b boards) predict(kind coll.Kind) []Class {
	var table []Class
	low := uint64(0) // first length of the class
	for _, g := range gradesOf(kind, b.size) {
		for low <= g.upTo {
			// Classes end at multiples of 64 bytes and are judged there.
			from := min((low+board.Align-1)&^(board.Align-1), g.upTo)
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
func (b boards) best(kind coll.Kind, bytes uint64, g grade) string {
	names := board.Algorithms(kind)
	if len(names) == 1 {
		return names[0]
	}
	best, least := "", board.Never
	for _, name := range names {
		if t := b.price(kind, g.class(kind, name), bytes); best == "" || t < least {
			best, least = name, t
		}
	}
	return best
}

func (b boards) pricer(kind coll.Kind, c Class) (*board.Pricer, error) {
	key := boardKey{kind, c.Algorithm, c.Lane, c.Chunk}
	if known := b.known[key]; known != nil {
		return known, nil
	}
	plans, err := board.Roles(kind, c.Algorithm, board.Place{Size: b.size, Lane: c.Lane, Chunk: c.Chunk})
	if err != nil {
		return nil, err
	}
	b.known[key] = board.NewPricer(plans, b.link)
	return b.known[key], nil
}

func (b boards) price(kind coll.Kind, c Class, bytes uint64) board.Femto {
	p, err := b.pricer(kind, c)
	if err != nil {
		return board.Never
	}
	return p.Price(bytes)
}

// lastWith looks for the end of the range, from low on (a multiple of 64) and within the grade, in which an algorithm
// stays the best: it doubles the length until another one wins, then halves the interval down to 64 bytes. Lengths
// beyond the horizon go with the last one looked at.
func (b boards) lastWith(kind coll.Kind, name string, low uint64, g grade) uint64 {
	if len(board.Algorithms(kind)) == 1 {
		return g.upTo
	}
	good := low
	for good < min(g.upTo, horizon) {
		next := min(max(board.Align, 2*good)&^(board.Align-1), g.upTo)
		if b.best(kind, next, g) == name {
			good = next
			continue
		}
		for next-good > board.Align {
			middle := (good + (next-good)/2) &^ (board.Align - 1)
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
