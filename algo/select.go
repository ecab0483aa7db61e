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

// Selector holds the choices of a group: a table of classes for every collective. They depend only on data that is
// equal on all ranks (shape, parameters, tuning), so all ranks make the same tables, and [Selector.Fingerprint] lets
// ranks compare them. The tables never change, and any goroutine may read them at any time.
type Selector struct {
	shape  Shape
	params Params
	sets   [][]Rule // each set overrides those before it
	table  [coll.KindCount]struct {
		sync.Once // made at the first use: predicting takes a while, and most groups use few kinds
		classes   []Class
	}
}

// NewSelector returns the selector of a group. It refuses rules that the group cannot follow.
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
			continue // predicted at its first use
		}
		classes, err := s.make(kind)
		if err != nil {
			return nil, err
		}
		s.table[kind].Do(func() { s.table[kind].classes = classes })
	}
	return s, nil
}

// ruled reports whether a user, a file or a policy has rules for a kind.
func (s *Selector) ruled(kind coll.Kind) bool {
	return slices.ContainsFunc(s.sets, func(rules []Rule) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.Kind == kind })
	})
}

// make predicts the table of a kind and applies the rules.
func (s *Selector) make(kind coll.Kind) (table []Class, err error) {
	if s.shape.Size == 1 {
		return alone(), nil
	}
	p, left := newPredictor(s.shape, s.params), mostWork
	p.left = &left
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

// classes returns the table of a kind, which is made at its first use.
func (s *Selector) classes(kind coll.Kind) []Class {
	one := &s.table[kind]
	one.Do(func() {
		if kind.Collective() {
			one.classes, _ = s.make(kind) // without rules there is no error
		}
	})
	return one.classes
}

// rule returns the rule that sets the class of a length, if there is one.
func (s *Selector) rule(kind coll.Kind, bytes uint64) (Rule, bool) {
	for _, rules := range slices.Backward(s.sets) {
		if r, ok := ruleFor(rules, kind, bytes); ok {
			return r, true
		}
	}
	return Rule{}, false
}

// alone returns the table of a group of one rank. No rule changes it.
func alone() []Class {
	return []Class{{UpTo: NoLimit, Algorithm: shmplan.Local, Transport: Slots, Slots: plan.LargeSlots,
		Chunk: plan.LargeSlotBytes}}
}

// Boundaries returns the classes of a kind in order of length. The last one has no limit.
func (s *Selector) Boundaries(kind coll.Kind) []Class { return slices.Clone(s.classes(kind)) }

// Params returns the parameters by which the selector predicts.
func (s *Selector) Params() Params { return s.params }

// Choose returns the class of a length. It holds for every root, since all ranks of a host are equally far apart.
func (s *Selector) Choose(kind coll.Kind, bytes uint64) Class {
	table := s.classes(kind)
	return table[sort.Search(len(table)-1, func(i int) bool { return bytes <= table[i].UpTo })]
}

// Fingerprint returns a hash of everything that must be the same on all ranks: shape, parameters, tables, and the
// geometry of slots and channels.
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

// pricesVersion changes with every change of prices after which some groups choose otherwise. Libraries with different
// ones do not form a group.
const pricesVersion = 2

// Geometry returns the dimensions of slots and channels, which plans depend on, and the version of the prices, as text.
func Geometry() string {
	return fmt.Sprint(plan.SmallSlotBytes, plan.SmallSlotCount, plan.LargeSlotBytes, plan.LargeSlotCount, plan.Align, plan.MessageBytes,
		plan.LongMessageBytes, plan.ChannelPlaces, plan.ChannelsPerPair, pricesVersion)
}
