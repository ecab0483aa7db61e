// Package algo chooses how a collective is carried out: by which algorithm, in chunks of which length, for which range
// of lengths. It has no I/O, no clock and no cgo, and imports the vocabulary package and the packages below only.
//
// What is chosen from are plans, collectives as data: package board has those of ranks that share memory, package
// message those of ranks that send one another messages. Both prove and price their plans.
//
// Start reading at [Selector].
package algo

import (
	"fmt"
	"hash/fnv"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	"sagecomm/algo/board"
	"sagecomm/internal/coll"
)

// NoLimit as [Class.UpTo] or [Rule.To] means every length beyond the class or rule before.
const NoLimit = math.MaxUint64

// MaxClasses is how many classes a kind can have: the runner's table of boundaries holds one less.
const MaxClasses = 17

// Class is a range of lengths for which one kind always does the same. It begins above the class before it.
type Class struct {
	UpTo      uint64 // the longest message of the class
	Algorithm string
	Lane      board.Lane
	Chunk     int
}

// grades set the chunk by length, before the algorithm is chosen: one chunk up to a slot of the small lane, and 128 KiB
// beyond. Smaller chunks let copies and waits overlap more, and were slower all the same: at 64 KiB four chunks of 16 KiB
// took 22 us and one took 15 us, since the flags of a chunk cost a microsecond (docs/measured.md). Larger ones differ by
// less than 5 % either way, and their slots fill a second-level cache of 1 MiB.
var grades = []grade{
	{board.SmallSlot, board.SmallSlot},
	{NoLimit, 128 << 10},
}

// grade is a range of lengths with one chunk.
type grade struct {
	upTo  uint64
	chunk int
}

// gradesOf are the grades of a kind. Where a slot holds a chunk of each block they are so much shorter; the small one
// goes where blocks would have none. An all_to_all begins in the small lane in any case.
func gradesOf(kind coll.Kind, size int) []grade {
	var list []grade
	for i, g := range grades {
		lane := board.LargeLane
		if i == 0 {
			lane = board.SmallLane
		}
		most := lane.MaxChunk(kind, size)
		if most < lane.SlotBytes() {
			g.chunk = min(most, max(board.Align, g.chunk/max(1, size-1)&^(board.Align-1)))
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

// laneFor is the lane of an algorithm in a class that ends at upTo.
func laneFor(kind coll.Kind, algorithm string, upTo uint64) board.Lane {
	if kind == coll.Barrier || algorithm == board.OneShotName && upTo <= board.SmallSlot {
		return board.SmallLane
	}
	return board.LargeLane
}

// MaxSize is the most ranks of a group.
const MaxSize = board.MaxSize

// Params holds the classes of links that a price is made of.
type Params struct {
	Board board.Link // shared memory of one host
}

// DefaultParams are those of [board.DefaultLink].
func DefaultParams() Params { return Params{Board: board.DefaultLink()} }

// Selector holds the choices of a group: for every collective a table of classes. It reads only what all ranks know
// alike (size, parameters, tuning), so that all make the same table; they compare [Selector.Fingerprint] to be sure.
// It never changes and may be used by any number of goroutines.
type Selector struct {
	size   int
	params Params
	tune   Tune
	table  [coll.KindCount][]Class
}

// NewSelector predicts the tables for groups of size ranks and puts the user's rules on top.
func NewSelector(size int, params Params, tune Tune) (*Selector, error) {
	if size < 1 || size > MaxSize {
		return nil, fmt.Errorf("a group of %d ranks: expected 1 to %d", size, MaxSize)
	}
	s := &Selector{size: size, params: params, tune: tune}
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		table := newPrices(size, params).predict(kind)
		if size > 1 {
			table = tune.apply(kind, s.size, table)
		}
		if len(table) > MaxClasses {
			return nil, fmt.Errorf("%s: %v: the rules make %d size classes, at most %d are possible: use fewer ranges", tuneName, kind, len(table), MaxClasses)
		}
		s.table[kind] = table
	}
	return s, nil
}

// Boundaries returns the classes of a kind in order of length. The last one has no limit.
func (s *Selector) Boundaries(kind coll.Kind) []Class { return append([]Class(nil), s.table[kind]...) }

// Choose returns the class of a message. The root does not matter: all ranks of a host are equally far.
func (s *Selector) Choose(kind coll.Kind, bytes uint64) Class {
	table := s.table[kind]
	return table[sort.Search(len(table)-1, func(i int) bool { return bytes <= table[i].UpTo })]
}

// Plan builds the plan of one rank for the class of a message.
func (s *Selector) Plan(kind coll.Kind, rank, root int, bytes uint64) (board.Plan, error) {
	if !kind.Collective() {
		return board.Plan{}, fmt.Errorf("%v is no collective", kind)
	}
	c := s.Choose(kind, bytes)
	return board.Build(kind, c.Algorithm, board.Place{Rank: rank, Size: s.size, Root: root, Lane: c.Lane, Chunk: c.Chunk})
}

// Fingerprint is a hash of all that must be the same on all ranks: tables and geometry of the slots.
func (s *Selector) Fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, s.size, board.SmallSlot, board.SmallSlots, board.LargeSlot, board.LargeSlots, board.Align)
	for kind, table := range s.table {
		for _, c := range table {
			fmt.Fprintln(h, coll.Kind(kind), c.UpTo, c.Algorithm, c.Lane, c.Chunk)
		}
	}
	return h.Sum64()
}

// prices makes tables by prediction. It remembers the plans it has priced.
type prices struct {
	size   int
	params Params
	known  map[priced]*board.Pricer
}

type priced struct {
	kind      coll.Kind
	algorithm string
	lane      board.Lane
	chunk     int
}

func newPrices(size int, params Params) prices {
	return prices{size, params, map[priced]*board.Pricer{}}
}

// predict makes the table of a kind without the user's rules.
func (p prices) predict(kind coll.Kind) []Class {
	if p.size == 1 {
		return []Class{{NoLimit, board.LocalName, board.LargeLane, board.LargeSlot}}
	}
	if kind == coll.Barrier {
		return []Class{{NoLimit, board.OneShotName, board.SmallLane, board.SmallSlot}}
	}
	var table []Class
	low := uint64(0) // first length of the class
	for _, g := range gradesOf(kind, p.size) {
		for low <= g.upTo {
			// Classes end at multiples of 64 bytes and are judged there.
			from := min((low+board.Align-1)&^(board.Align-1), g.upTo)
			name := p.best(kind, from, g.chunk, g.upTo)
			end := p.lastWith(kind, name, from, g.chunk, g.upTo)
			table = append(table, Class{end, name, laneFor(kind, name, g.upTo), g.chunk})
			if end == NoLimit {
				return table
			}
			low = end + 1
		}
	}
	return table
}

// best is the cheapest algorithm for a length in a grade.
func (p prices) best(kind coll.Kind, bytes uint64, chunk int, upTo uint64) string {
	names := board.Algorithms(kind)
	if len(names) == 1 {
		return names[0]
	}
	best, least := "", board.Never
	for _, name := range names {
		if t := p.predicted(kind, name, bytes, laneFor(kind, name, upTo), chunk); best == "" || t < least {
			best, least = name, t
		}
	}
	return best
}

func (p prices) predicted(kind coll.Kind, algorithm string, bytes uint64, lane board.Lane, chunk int) board.Femto {
	what := priced{kind, algorithm, lane, chunk}
	known := p.known[what]
	if known == nil {
		plan, err := board.Build(kind, algorithm, board.Place{Size: p.size, Lane: lane, Chunk: chunk})
		if err != nil {
			return board.Never
		}
		known = board.NewPricer(plan, p.params.Board)
		p.known[what] = known
	}
	return known.Price(bytes)
}

// lastWith looks for the end of the range, from low on (a multiple of 64) and within the grade, in which an algorithm
// stays the best: it doubles the length until another one wins, then halves the interval down to 64 bytes. Lengths
// beyond 1 GiB go with the last one looked at.
func (p prices) lastWith(kind coll.Kind, name string, low uint64, chunk int, upTo uint64) uint64 {
	const horizon = 1 << 30
	if len(board.Algorithms(kind)) == 1 {
		return upTo
	}
	good := low
	for good < min(upTo, horizon) {
		next := min(max(board.Align, 2*good)&^(board.Align-1), upTo)
		if p.best(kind, next, chunk, upTo) == name {
			good = next
			continue
		}
		for next-good > board.Align {
			middle := (good + (next-good)/2) &^ (board.Align - 1)
			if p.best(kind, middle, chunk, upTo) == name {
				good = middle
			} else {
				next = middle
			}
		}
		return good
	}
	return upTo
}

// Describe tells the classes of a kind in the grammar of [ParseTune], and where each comes from.
func (s *Selector) Describe(kind coll.Kind) string {
	var parts []string
	from := "0"
	for _, c := range s.table[kind] {
		to := "inf"
		if c.UpTo != NoLimit {
			to = strconv.FormatUint(c.UpTo, 10)
		}
		why := "predicted"
		if _, forced := s.tune.rule(kind, c.UpTo); forced && s.size > 1 {
			why = tuneName
		} else if len(board.Algorithms(kind)) == 1 || s.size == 1 {
			why = "the only one"
		}
		parts = append(parts, fmt.Sprintf("%s-%s:%s@chunk=%d (%s)", from, to, c.Algorithm, c.Chunk, why))
		from = to
	}
	return fmt.Sprintf("%v: %s", kind, strings.Join(parts, ", "))
}

// Candidate is one way to carry a collective out.
type Candidate struct {
	Algorithm string
	Lane      board.Lane
	Chunk     int
	Predicted time.Duration
	Chosen    bool
	Forced    bool // chosen by a rule of the user's, not by its price
}

// Explain returns all candidates for a message, cheapest first, with the one that is used marked. The prediction for
// a class was made at a few lengths, so close to a boundary the chosen one may not be the first.
func (s *Selector) Explain(kind coll.Kind, bytes uint64) []Candidate {
	chosen := s.Choose(kind, bytes)
	names := board.Algorithms(kind)
	if s.size == 1 {
		names = []string{board.LocalName}
	}
	_, forced := s.tune.rule(kind, bytes)
	forced = forced && s.size > 1
	var list []Candidate
	add := func(c Class) {
		t := newPrices(s.size, s.params).predicted(kind, c.Algorithm, bytes, c.Lane, c.Chunk)
		list = append(list, Candidate{Algorithm: c.Algorithm, Lane: c.Lane, Chunk: c.Chunk, Predicted: t.Duration()})
	}
	add(chosen)
	list[0].Chosen, list[0].Forced = true, forced
	own := gradesOf(kind, s.size)
	g := own[sort.Search(len(own)-1, func(i int) bool { return bytes <= own[i].upTo })]
	for _, name := range names {
		c := Class{Algorithm: name, Lane: laneFor(kind, name, g.upTo), Chunk: g.chunk}
		if name == chosen.Algorithm && (c.Lane == chosen.Lane && c.Chunk == chosen.Chunk || s.size == 1 || kind == coll.Barrier) {
			continue
		}
		add(c)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].Predicted < list[j].Predicted })
	return list
}
