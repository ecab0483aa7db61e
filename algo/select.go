// Package algo chooses how a collective is carried out: by which algorithm, in chunks of which length, for which range
// of lengths. It has no I/O, no clock and no cgo, and imports the vocabulary package and the packages below only.
//
// What is chosen from are plans, collectives as data: package board has those of ranks that share memory, package
// message those of ranks that send one another messages. Both prove and price their plans.
//
// A table of classes for each kind is predicted (predict.go), from what links cost (params.go) and what the group looks
// like (shape.go); a policy may replace it by fixed rules (policy.go), and a user's rules come on top (tune.go,
// file.go).
//
// Start reading at [Selector].
package algo

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"sync"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// Selector holds the choices of a group: for every collective a table of classes. It reads only what all ranks know
// alike (shape, parameters, tuning), so that all make the same table: [Selector.Fingerprint] tells.
// What it answers never changes and may be asked for by any number of goroutines.
type Selector struct {
	shape  Shape
	params Params
	sets   [][]Rule // each on top of those before
	table  [coll.KindCount]struct {
		sync.Once // predicting takes a while, and most groups use few kinds
		classes   []Class
	}
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
	s := &Selector{shape: shape, params: params, sets: [][]Rule{policy.rules(shape), tune.below, tune.Rules}}
	for kind := range coll.KindCount {
		if !kind.Collective() || !s.ruled(kind) {
			continue // what is predicted is right
		}
		classes, err := s.make(kind)
		if err != nil {
			return nil, err
		}
		s.table[kind].Do(func() { s.table[kind].classes = classes })
	}
	return s, nil
}

// ruled says whether a user, a file or a policy has rules for a kind.
func (s *Selector) ruled(kind coll.Kind) bool {
	return slices.ContainsFunc(s.sets, func(rules []Rule) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.Kind == kind })
	})
}

// make makes the table of a kind.
func (s *Selector) make(kind coll.Kind) (table []Class, err error) {
	if s.shape.Size == 1 {
		return alone(), nil
	}
	p := newPredictor(s.shape, s.params)
	table = p.table(kind)
	for _, rules := range s.sets {
		if table, err = p.apply(kind, rules, table); err != nil {
			return nil, err
		}
	}
	if len(table) > MaxClasses {
		return nil, fmt.Errorf("%s: %v: the rules make %d size classes, at most %d are possible: use fewer ranges",
			tuneName, kind, len(table), MaxClasses)
	}
	return table, nil
}

// classes are the table of a kind, made at its first use.
func (s *Selector) classes(kind coll.Kind) []Class {
	one := &s.table[kind]
	one.Do(func() {
		if kind.Collective() {
			one.classes, _ = s.make(kind) // of a kind without rules nothing is refused
		}
	})
	return one.classes
}

// rule is the rule for a length, if there is one.
func (s *Selector) rule(kind coll.Kind, bytes uint64) (Rule, bool) {
	for _, rules := range slices.Backward(s.sets) {
		if r, ok := ruleFor(rules, kind, bytes); ok {
			return r, true
		}
	}
	return Rule{}, false
}

// alone is the table of a rank alone, whatever is set.
func alone() []Class {
	return []Class{{UpTo: NoLimit, Algorithm: shmplan.Local, Transport: Slots, Slots: plan.LargeSlots,
		Chunk: plan.LargeSlotBytes}}
}

// Boundaries returns the classes of a kind in order of length. The last one has no limit.
func (s *Selector) Boundaries(kind coll.Kind) []Class { return slices.Clone(s.classes(kind)) }

// Choose returns the class of a message. The root does not matter: all ranks of a host are equally far.
func (s *Selector) Choose(kind coll.Kind, bytes uint64) Class {
	table := s.classes(kind)
	return table[sort.Search(len(table)-1, func(i int) bool { return bytes <= table[i].UpTo })]
}

// Fingerprint is a hash of all that must be the same on all ranks: shape, parameters, tables, and the geometry of slots
// and channels.
func (s *Selector) Fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, Geometry())
	fmt.Fprintln(h, s.shape.Size, s.shape.Hosts, s.shape.Apart, s.params.whole())
	for kind := range coll.KindCount {
		for _, c := range s.classes(kind) {
			fmt.Fprintln(h, kind, c.UpTo, c.Algorithm, c.Transport, c.Slots, c.Chunk, c.Even)
		}
	}
	return h.Sum64()
}

// Geometry tells the dimensions of slots and channels, which plans rely on.
func Geometry() string {
	return fmt.Sprint(plan.SmallSlotBytes, plan.SmallSlotCount, plan.LargeSlotBytes, plan.LargeSlotCount, plan.Align, plan.MessageBytes,
		plan.ChannelPlaces, plan.ChannelsPerPair)
}
