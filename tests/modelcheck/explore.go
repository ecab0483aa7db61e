package modelcheck

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// Violation is what [Explore] found: the shortest way to it.
type Violation struct {
	Kind  Kind
	Text  string
	Trace []string
}

// Result of an exploration. States counts the distinct states that were visited, Depth the steps to the farthest one.
type Result struct {
	States, Steps, Depth int
	Violation            *Violation
}

// origin is how a state was reached first.
type origin struct {
	from uint32
	step step
}

// Explore visits every state that the scenario can reach, breadth first, with one protection out or [Intact]. It stops
// at the first violation, to which no way is shorter.
//
// States are kept as 64-bit hashes with a seed that differs from run to run: with 10 million states the probability
// that two of them are taken for one is below 1 in 300,000.
func Explore(sc Scenario, off Switch) Result {
	m := sc.machine(off)
	var r Result
	first, found := m.start(nil)
	if found != nil {
		return Result{States: 1, Violation: m.violation(found, nil, 0, step{}, false)}
	}
	seed := maphash.MakeSeed()
	seen := newSet()
	seen.add(maphash.Comparable(seed, first))
	origins := []origin{{}}
	level, next := []state{first}, []state(nil)
	base := uint32(0) // number of level's first state
	var steps []step
	for len(level) > 0 {
		for i := range level {
			var real int
			steps, real = m.steps(&level[i], steps[:0])
			at := base + uint32(i)
			if real == 0 {
				if f := m.atRest(&level[i]); f != nil {
					r.States, r.Violation = len(origins), m.violation(f, origins, at, step{}, false)
					return r
				}
			}
			for _, st := range steps {
				s := level[i]
				r.Steps++
				if f := m.take(&s, st, nil); f != nil {
					r.States, r.Violation = len(origins), m.violation(f, origins, at, st, true)
					return r
				}
				if seen.add(maphash.Comparable(seed, s)) {
					next = append(next, s)
					origins = append(origins, origin{at, st})
				}
			}
		}
		base += uint32(len(level))
		level, next = next, level[:0]
		if len(level) > 0 {
			r.Depth++
		}
	}
	r.States = len(origins)
	return r
}

// violation replays the way to what was found, with lines for humans. moved: the step `last` showed it, not a state of rest.
func (m *machine) violation(f *violation, origins []origin, at uint32, last step, moved bool) *Violation {
	v := &Violation{Kind: f.kind, Text: f.text}
	var way []step
	for ; at != 0; at = origins[at].from {
		way = append(way, origins[at].step)
	}
	slices.Reverse(way)
	if moved {
		way = append(way, last)
	}
	log := func(line string) { v.Trace = append(v.Trace, line) }
	s, again := m.start(log)
	for _, st := range way {
		again = m.take(&s, st, log)
	}
	if again == nil {
		again = m.atRest(&s)
	}
	if again == nil || again.kind != f.kind {
		panic(fmt.Sprintf("the way to %q does not lead there again", f.text))
	}
	return v
}

// set holds hashes; 0 stands for none, and is taken for 1.
type set struct {
	slots []uint64
	n     int
}

func newSet() *set { return &set{slots: make([]uint64, 1<<12)} }

func (s *set) add(h uint64) bool {
	if h == 0 {
		h = 1
	}
	if s.n*2 >= len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, 2*len(old))
		for _, o := range old {
			if o != 0 {
				s.slots[s.free(o)] = o
			}
		}
	}
	i := s.free(h)
	if s.slots[i] == h {
		return false
	}
	s.slots[i] = h
	s.n++
	return true
}

// free is the place of h, or the free one where it belongs.
func (s *set) free(h uint64) uint64 {
	mask := uint64(len(s.slots) - 1)
	i := h & mask
	for s.slots[i] != 0 && s.slots[i] != h {
		i = (i + 1) & mask
	}
	return i
}
