package fusion

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

// This file explores every interleaving of a few ranks over short programs. What is checked in every state: all ranks have the
// same collectives, agreements included, in the same order; and where nothing can happen any more, every program has ended.

// explored are the programs of the ranks. A letter issues a collective: r an all_reduce that joins others; a the same where only this
// rank cannot put it beside those before it, since they share memory there; R an all_reduce of another type; b a barrier. A digit
// waits for the collective of that number, counted from 0.
var explored = [][]string{
	{"rr01", "r0r1"}, {"rr01", "rr10"}, {"rr", "r0r"}, // waits at different places, or never
	{"rrb", "r0rb"}, {"rrb2", "rr0b"}, {"rbr0", "rb1r"}, // what joins no bucket closes it
	{"rRr0", "r0Rr2"}, {"rrrr3", "rr1rr"}, {"rrrb0", "r0r1rb"},
	{"rr1", "r0r", "rr"}, {"rrb", "r0rb", "rr1b"},
	{"rr1", "ra1"}, {"rrr2", "rar"}, {"arr0", "rra2"}, {"rrb", "ra0b"}, {"raR2", "rrR"}, {"rra", "rar2", "arr"},
}

// world is a state: ranks at their places in their programs, with what they have issued.
type world struct {
	programs []string
	ranks    []actor
}

type actor struct {
	at     int // in the program
	issued int
	queue  Queue
	order  []string // its collectives: "agree", or the numbers of the operations that it carries
	oldest int      // number of the oldest operation in the queue
	mine   []int    // its proposals, by agreement
	learnt int      // agreements that it knows the end of
}

func (w *world) clone() *world {
	c := &world{w.programs, slices.Clone(w.ranks)}
	for i := range c.ranks {
		a := &c.ranks[i]
		a.queue.list, a.order, a.mine = slices.Clone(a.queue.list), slices.Clone(a.order), slices.Clone(a.mine)
	}
	return c
}

func (w *world) key() string {
	var b strings.Builder
	for i := range w.ranks {
		a := &w.ranks[i]
		fmt.Fprint(&b, a.at, a.oldest, a.queue.proposed, a.queue.agreed, a.queue.wanted, a.order, a.mine, a.learnt, ";")
	}
	return b.String()
}

// complete reports whether all ranks have begun the collective that carries an operation of a rank.
func (w *world) complete(rank, op int) bool {
	for i, c := range w.ranks[rank].order {
		if slices.Contains(strings.Fields(c), fmt.Sprint(op)) {
			return !slices.ContainsFunc(w.ranks, func(a actor) bool { return len(a.order) <= i })
		}
	}
	return false
}

// rules are what a broken design lacks.
type rules struct {
	ticks  bool // a rank with an open bucket proposes it after a while
	lowest bool // the lowest proposal decides, not each rank's own
}

// moves returns the states that can follow.
func (w *world) moves(r rules) (next []*world) {
	try := func(rank int, does func(n *world, a *actor) bool) {
		n := w.clone()
		if a := &n.ranks[rank]; does(n, a) {
			a.settle()
			next = append(next, n)
		}
	}
	for rank := range w.ranks {
		try(rank, func(n *world, a *actor) bool { return n.act(rank) })
		try(rank, func(_ *world, a *actor) bool {
			if !r.ticks || len(a.queue.list) == 0 {
				return false
			}
			a.queue.Want()
			return a.queue.wanted
		})
		try(rank, func(n *world, a *actor) bool {
			lowest := n.agreed(a.learnt)
			if a.learnt == len(a.mine) || lowest == 0 {
				return false
			}
			if !r.lowest {
				lowest = a.mine[a.learnt]
			}
			a.learnt++
			return a.queue.Agreed(uint64(lowest))
		})
	}
	return next
}

// act makes the next step of a rank's program. It reports false if the rank waits, and has asked for an agreement already.
func (w *world) act(rank int) bool {
	a := &w.ranks[rank]
	if a.at == len(w.programs[rank]) {
		return false
	}
	op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, In: 4, Out: 4}
	apart := w.programs[rank][a.at] == 'a'
	switch step := w.programs[rank][a.at]; step {
	case 'b':
		op = coll.Op{Kind: coll.Barrier}
	case 'R':
		op.Type = coll.Float64
	case 'r', 'a':
	default:
		if w.complete(rank, int(step-'0')) {
			a.at++
			return true
		}
		a.queue.Want()
		return a.queue.wanted && int(step-'0') >= a.oldest
	}
	a.queue.Add(op, apart)
	a.issued++
	a.at++
	return true
}

// agreed returns the lowest proposal of an agreement, or 0 while a rank has made none.
func (w *world) agreed(number int) int {
	lowest := 1 << 30
	for _, a := range w.ranks {
		if len(a.mine) <= number {
			return 0
		}
		lowest = min(lowest, a.mine[number])
	}
	return lowest
}

func (a *actor) settle() {
	for {
		switch step := a.queue.Next(); {
		case step.Propose > 0:
			a.order = append(a.order, "agree")
			a.mine = append(a.mine, step.Propose)
		case step.Carry > 0:
			var numbers []string
			for range step.Carry {
				numbers = append(numbers, fmt.Sprint(a.oldest))
				a.oldest++
			}
			a.order = append(a.order, strings.Join(numbers, " "))
		default:
			return
		}
	}
}

// check returns what is wrong with a state.
func (w *world) check(end bool) string {
	for i := range w.ranks[1:] {
		a, b := w.ranks[0].order, w.ranks[i+1].order
		if n := min(len(a), len(b)); !slices.Equal(a[:n], b[:n]) {
			return fmt.Sprintf("ranks 0 and %d have different collectives: %q and %q", i+1, a, b)
		}
	}
	for rank, a := range w.ranks {
		if end && (a.at < len(w.programs[rank]) || len(a.queue.list) > 0) {
			return fmt.Sprintf("rank %d hangs at %d of %q", rank, a.at, w.programs[rank])
		}
	}
	return ""
}

// explore returns the first fault that it finds, and the number of states.
func explore(programs []string, r rules) (fault string, states int) {
	start := &world{programs, make([]actor, len(programs))}
	for i := range start.ranks {
		start.ranks[i].queue = *NewQueue(Limits{100, 12, 3})
	}
	seen := map[string]bool{start.key(): true}
	for todo := []*world{start}; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		next := w.moves(r)
		if fault := w.check(len(next) == 0); fault != "" {
			return fault, len(seen)
		}
		for _, n := range next {
			if key := n.key(); !seen[key] {
				seen[key] = true
				todo = append(todo, n)
			}
		}
	}
	return "", len(seen)
}

func TestEveryInterleaving(t *testing.T) {
	for _, programs := range explored {
		fault, states := explore(programs, rules{ticks: true, lowest: true})
		if fault != "" {
			t.Errorf("%q: %s", programs, fault)
		}
		t.Logf("%q: %d states", programs, states)
	}
}

// Without the rules, the exploration finds what they are for.
func TestEveryRuleIsNeeded(t *testing.T) {
	for _, c := range []struct {
		rules rules
		fault string
	}{
		{rules{ticks: false, lowest: true}, "hangs"},
		{rules{ticks: true, lowest: false}, "different collectives"},
	} {
		found := slices.ContainsFunc(explored, func(programs []string) bool {
			fault, _ := explore(programs, c.rules)
			return strings.Contains(fault, c.fault)
		})
		if !found {
			t.Errorf("%+v: no program %s", c.rules, c.fault)
		}
	}
	fault, _ := explore([]string{"rr1", "ra1"}, rules{ticks: true, lowest: false})
	if !strings.Contains(fault, "different collectives") {
		t.Errorf("ranks that put different operations beside each other: %q", fault)
	}
}
