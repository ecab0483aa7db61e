// Package algo chooses how a collective is carried out: by which algorithm, in chunks of which length, for which range
// of lengths. It has no I/O, no clock and no cgo, and imports the vocabulary package and the packages below only.
//
// What is chosen from are plans, collectives as data: package board has those of ranks that share memory, package
// message those of ranks that send one another messages. Both prove and price their plans.
//
// A table of classes for each kind is predicted (predict.go), from what links cost (params.go) and what the group looks
// like (shape.go); a policy may replace it by fixed rules (policy.go), and a user's rules come on top (tune.go, file.go).
//
// Start reading at [Selector].
package algo

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sort"

	"sagecomm/algo/board"
	"sagecomm/internal/coll"
)

// Selector holds the choices of a group: for every collective a table of classes. It reads only what all ranks know
// alike (shape, parameters, tuning), so that all make the same table; they compare [Selector.Fingerprint] to be sure.
// It never changes and may be used by any number of goroutines.
type Selector struct {
	shape  Shape
	params Params
	rules  []Rule // in order of precedence
	table  [coll.KindCount][]Class
}

// NewSelector predicts the tables of a group and puts the policy's and the user's rules on top.
func NewSelector(shape Shape, params Params, tune Tune) (*Selector, error) {
	if err := shape.validate(); err != nil {
		return nil, err
	}
	params, err := params.with(tune.Settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tuneName, err)
	}
	if err := params.Validate(); err != nil {
		return nil, err
	}
	policy, ok := findPolicy(tune.Policy)
	if !ok {
		return nil, fmt.Errorf("unknown policy %q", tune.Policy)
	}
	s := &Selector{shape: shape, params: params}
	p := newPredictor(shape, params)
	sets := [][]Rule{policy.rules(shape), tune.below, tune.Rules} // each on top of those before
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		if shape.Size == 1 {
			s.table[kind] = alone()
			continue
		}
		table := p.table(kind)
		for _, rules := range sets {
			if table, err = p.apply(kind, rules, table); err != nil {
				return nil, err
			}
		}
		if len(table) > MaxClasses {
			return nil, fmt.Errorf("%s: %v: the rules make %d size classes, at most %d are possible: use fewer ranges", tuneName, kind, len(table), MaxClasses)
		}
		s.table[kind] = table
	}
	for _, rules := range slices.Backward(sets) {
		s.rules = append(s.rules, rules...)
	}
	return s, nil
}

// alone is the table of a rank alone, whatever is set.
func alone() []Class {
	return []Class{{UpTo: NoLimit, Algorithm: board.LocalName, Transport: Boards, Lane: board.LargeLane, Chunk: board.LargeSlot}}
}

// Boundaries returns the classes of a kind in order of length. The last one has no limit.
func (s *Selector) Boundaries(kind coll.Kind) []Class { return append([]Class(nil), s.table[kind]...) }

// Choose returns the class of a message. The root does not matter: all ranks of a host are equally far.
func (s *Selector) Choose(kind coll.Kind, bytes uint64) Class {
	table := s.table[kind]
	return table[sort.Search(len(table)-1, func(i int) bool { return bytes <= table[i].UpTo })]
}

// Fingerprint is a hash of all that must be the same on all ranks: shape, parameters, tables, and the geometry of slots
// and channels.
func (s *Selector) Fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, board.SmallSlot, board.SmallSlots, board.LargeSlot, board.LargeSlots, board.Align, FlowMessage, FlowPlaces, FlowChannels)
	fmt.Fprintln(h, s.shape.Size, s.shape.Channels, s.shape.Hosts, s.params.whole())
	for kind, table := range s.table {
		for _, c := range table {
			fmt.Fprintln(h, coll.Kind(kind), c.UpTo, c.Algorithm, c.Transport, c.Lane, c.Chunk, c.Even)
		}
	}
	return h.Sum64()
}
