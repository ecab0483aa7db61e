package cuda

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// These tests explore every interleaving of the streams of 2 and 3 ranks that launch graphs with captured operations. A stream carries out
// its commands in their order; waiting for a token and clearing it are two of them. Each launch has inputs of its own, so a rank that
// reads what belongs to another launch has a wrong output.

const exploredSlot = 512 // bytes

// act is a command of a stream as the device carries it out.
type act struct {
	kind   actKind
	word   word
	peer   int
	slot   int64
	move   plan.Move
	number int // of the operation in the order of launches
}

type actKind uint8

const (
	waits  actKind = iota // until a token of this rank is set
	clears                // such a token
	sets                  // a token of the peer
	moves
	begins // the operation
	ends   // the operation
)

// captured is an operation by what all ranks know of it.
type captured struct {
	kind   coll.Kind
	length uint64 // of a block
	root   int
	two    bool // two-shot
}

func (c captured) of(rank, size int) coll.Op {
	op := coll.Op{Kind: c.kind, Type: coll.Uint8, Root: c.root, In: c.length, Out: c.length}
	all := uint64(size) * c.length
	switch c.kind {
	case coll.Barrier:
		op.In, op.Out = 0, 0
	case coll.Reduce, coll.Gather:
		op.Out = 0
		if rank == c.root {
			op.Out = map[coll.Kind]uint64{coll.Reduce: c.length, coll.Gather: all}[c.kind]
		}
	case coll.Broadcast, coll.Scatter:
		op.In = 0
		if rank == c.root {
			op.In = map[coll.Kind]uint64{coll.Broadcast: c.length, coll.Scatter: all}[c.kind]
		}
	case coll.AllGather:
		op.Out = all
	case coll.ReduceScatter:
		op.In = all
	case coll.AllToAll:
		op.In, op.Out = all, all
	}
	return op
}

// explored is a group of ranks with what they launch.
type explored struct {
	size     int
	ops      []captured
	programs [][]act // by rank
	seed     maphash.Seed
	seen     map[uint64]bool
	memory   maphash.Hash
}

// state is where all streams are, and what all memory holds.
type state struct {
	at     []uint16 // by rank: acts done
	begun  []uint16 // by rank: operations
	tokens []byte
	slots  []byte // of all ranks
	out    [][]byte
}

// explore returns the error that some interleaving leads to, and how many states there are. mutate changes what a stream holds.
func explore(size int, launches [][]captured, mutate func(rank int, list []act) []act) (states int, err error) {
	e := &explored{size: size, programs: make([][]act, size), seed: maphash.MakeSeed(), seen: map[uint64]bool{}}
	for _, graph := range launches {
		base := make([]int64, size)
		for _, c := range graph {
			for rank := range size {
				p := &planner{rank, size, exploredSlot, func(coll.Kind, int, uint64) algo.Class {
					if c.two {
						return algo.Class{Algorithm: shmplan.TwoShot, Chunk: exploredSlot}
					}
					return algo.Class{Algorithm: shmplan.OneShot, Chunk: exploredSlot}
				}}
				list, next := p.capture(c.of(rank, size), base[rank])
				base[rank] = next
				e.programs[rank] = append(e.programs[rank], acts(list, len(e.ops))...)
			}
			e.ops = append(e.ops, c)
		}
	}
	s := &state{at: make([]uint16, size), begun: make([]uint16, size), tokens: make([]byte, size*size*slotCount*int(words)),
		slots: make([]byte, size*slotCount*exploredSlot), out: make([][]byte, size)}
	for rank := range size {
		if mutate != nil {
			e.programs[rank] = mutate(rank, e.programs[rank])
		}
		for peer := range size {
			for slot := range int64(slotCount) {
				s.tokens[e.token(rank, peer, slot, left)] = 1
			}
		}
	}
	err = e.from(s)
	return len(e.seen), err
}

func acts(list []command, number int) []act {
	all := []act{{kind: begins, number: number}}
	for _, c := range list {
		a := act{word: c.word, peer: c.peer, slot: c.slot, move: c.move, number: number}
		for _, a.kind = range map[verb][]actKind{take: {waits, clears}, look: {waits}, give: {sets}, move: {moves}}[c.verb] {
			all = append(all, a)
		}
	}
	return append(all, act{kind: ends, number: number})
}

func (e *explored) token(rank, peer int, slot int64, w word) int {
	return ((rank*e.size+peer)*slotCount+int(slot))*int(words) + int(w)
}

func (s *state) clone() *state {
	c := &state{slices.Clone(s.at), slices.Clone(s.begun), slices.Clone(s.tokens), slices.Clone(s.slots), make([][]byte, len(s.out))}
	for i := range s.out {
		c.out[i] = slices.Clone(s.out[i])
	}
	return c
}

func (e *explored) from(s *state) error {
	h := &e.memory
	h.SetSeed(e.seed)
	for i := range s.at {
		_ = h.WriteByte(byte(s.at[i]))
		_ = h.WriteByte(byte(s.at[i] >> 8))
		_, _ = h.Write(s.out[i])
	}
	_, _ = h.Write(s.tokens)
	_, _ = h.Write(s.slots)
	if sum := h.Sum64(); e.seen[sum] {
		return nil
	} else {
		e.seen[sum] = true
	}
	ready, done := 0, 0
	for rank, program := range e.programs {
		if int(s.at[rank]) == len(program) {
			done++
			continue
		}
		a := &program[s.at[rank]]
		if a.kind == waits && s.tokens[e.token(rank, a.peer, a.slot, a.word)] == 0 {
			continue
		}
		ready++
		next := s.clone()
		next.at[rank]++
		if err := e.carryOut(next, rank, a); err != nil {
			return err
		}
		if err := e.from(next); err != nil {
			return err
		}
	}
	if ready == 0 && done < e.size {
		return fmt.Errorf("deadlock: all streams wait")
	}
	return nil
}

func (e *explored) carryOut(s *state, rank int, a *act) error {
	switch a.kind {
	case clears:
		s.tokens[e.token(rank, a.peer, a.slot, a.word)] = 0
	case sets:
		s.tokens[e.token(a.peer, rank, a.slot, a.word)] = 1
	case begins:
		s.begun[rank] = uint16(a.number) + 1
		s.out[rank] = make([]byte, e.ops[a.number].of(rank, e.size).Out)
	case ends:
		if want := e.want(rank, a.number); want != nil && !bytes.Equal(s.out[rank], want) {
			return fmt.Errorf("wrong data: rank %d in operation %d", rank, a.number)
		}
		for peer := range e.size {
			if e.ops[a.number].kind == coll.Barrier && int(s.begun[peer]) <= a.number {
				return fmt.Errorf("barrier %d ends on rank %d, and rank %d has not begun it", a.number, rank, peer)
			}
		}
		s.out[rank] = nil
	case moves:
		e.move(s, rank, a)
	}
	return nil
}

// input returns what a rank contributes to an operation.
func (e *explored) input(rank, number int) []byte {
	in := make([]byte, e.ops[number].of(rank, e.size).In)
	for i := range in {
		in[i] = byte(1 + rank*61 + number*17 + i*3)
	}
	return in
}

func (e *explored) move(s *state, rank int, a *act) {
	place := func(r plan.Range) []byte {
		switch r.Space {
		case plan.Input:
			return e.input(rank, a.number)[r.Off : r.Off+r.Len]
		case plan.Output:
			return s.out[rank][r.Off : r.Off+r.Len]
		}
		at := uint64(r.Rank)*slotCount*exploredSlot + r.Off - allSlots
		return s.slots[at : at+r.Len]
	}
	result := make([]byte, a.move.From[0].Len)
	for _, from := range a.move.From {
		for i, b := range place(from) {
			result[i] += b
		}
	}
	for _, to := range a.move.To {
		copy(place(to), result)
	}
}

// want returns the output of a rank; nil: none.
func (e *explored) want(rank, number int) []byte {
	c := e.ops[number]
	sum := make([]byte, len(e.input(0, number)))
	var all []byte
	for r := range e.size {
		in := e.input(r, number)
		all = append(all, in...)
		for i := range min(len(in), len(sum)) {
			sum[i] += in[i]
		}
	}
	n := int(c.length)
	switch {
	case (c.kind == coll.Reduce || c.kind == coll.Gather) && rank != c.root:
		return nil
	case c.kind == coll.Broadcast && rank == c.root:
		return nil // in place
	case c.kind == coll.Broadcast:
		return e.input(c.root, number)
	case c.kind == coll.AllReduce, c.kind == coll.Reduce:
		return sum
	case c.kind == coll.AllGather, c.kind == coll.Gather:
		return all
	case c.kind == coll.ReduceScatter:
		return sum[rank*n : (rank+1)*n]
	case c.kind == coll.Scatter:
		return e.input(c.root, number)[rank*n : (rank+1)*n]
	case c.kind == coll.AllToAll:
		var list []byte
		for r := range e.size {
			list = append(list, e.input(r, number)[rank*n:(rank+1)*n]...)
		}
		return list
	}
	return nil
}

// times returns launches of a graph.
func times(n int, graph ...captured) (list [][]captured) {
	for range n {
		list = append(list, graph)
	}
	return list
}

var (
	sum       = captured{kind: coll.AllReduce, length: 5}
	longSum   = captured{kind: coll.AllReduce, length: exploredSlot + 5}
	sumOfTwo  = captured{kind: coll.AllReduce, length: 200, two: true}
	gather    = captured{kind: coll.AllGather, length: 3}
	scatter   = captured{kind: coll.ReduceScatter, length: 3}
	exchange  = captured{kind: coll.AllToAll, length: 3}
	barrier   = captured{kind: coll.Barrier}
	broadcast = captured{kind: coll.Broadcast, length: 4}
	collect   = captured{kind: coll.Gather, length: 4, root: 1}
)

// Each interleaving of launches gives each rank its outputs, and none hangs.
func TestEveryInterleavingOfLaunches(t *testing.T) {
	for _, one := range []struct {
		name     string
		size     int
		launches [][]captured
		long     bool
	}{
		{"sums", 2, times(4, sum), false},
		{"sums of two chunks", 2, times(3, longSum), false},
		{"sums in two rounds", 2, times(3, sumOfTwo), false},
		{"a graph of many operations", 2, times(2, sum, gather, barrier, exchange, broadcast, scatter), false},
		{"two graphs in turns", 2, append(times(2, sum, gather), append(times(1, broadcast), times(2, barrier, sum)...)...), false},
		{"barriers of 2", 2, times(6, barrier), false},
		{"sums of 3", 3, times(3, sum), false},
		{"barriers of 3", 3, times(3, barrier), false},
		{"readers differ", 3, append(append(times(1, broadcast), times(1, collect)...), times(1, broadcast)...), false},
		{"exchanges of 3", 3, times(3, exchange), true},
		{"sums of 3 in two rounds", 3, times(2, sumOfTwo), true},
		{"gathers and scatters of 3", 3, times(2, gather, scatter), true},
		{"reductions and scatters to one", 3, times(2, captured{kind: coll.Reduce, length: 9, root: 2, two: true}, captured{kind: coll.Scatter, length: 3, root: 2}), true},
	} {
		t.Run(one.name, func(t *testing.T) {
			if one.long && testing.Short() {
				t.Skip("long")
			}
			states, err := explore(one.size, one.launches, nil)
			require.NoError(t, err)
			t.Logf("%d states", states)
			require.Greater(t, states, 100)
		})
	}
}

// without leaves acts out.
func without(leaves func(a act) bool) func(int, []act) []act {
	return func(_ int, list []act) []act { return slices.DeleteFunc(list, leaves) }
}

// later puts each act of one kind behind the next one of another.
func later(first, then func(a act) bool) func(int, []act) []act {
	return func(_ int, list []act) []act {
		var out, kept []act
		for _, a := range list {
			if first(a) {
				kept = append(kept, a)
				continue
			}
			out = append(out, a)
			if then(a) {
				out, kept = append(out, kept...), nil
			}
		}
		return append(out, kept...)
	}
}

func is(kind actKind, w word) func(act) bool {
	return func(a act) bool { return a.kind == kind && (kind == moves || a.word == w) }
}

// The exploration finds what is wrong without each part of the protocol.
func TestEveryPartOfTheHandOverIsNeeded(t *testing.T) {
	reading := func(a act) bool { return a.kind == moves && a.move.From[0].Space == plan.Slot }
	readers := append(append(times(1, broadcast), times(1, collect)...), times(1, broadcast)...)
	looks := func(rank int, list []act) []act { // waits that are not followed by the clearing of their token
		var out []act
		for i, a := range list {
			if a.kind == waits && (i+1 == len(list) || list[i+1].kind != clears) {
				continue
			}
			out = append(out, a)
		}
		return out
	}
	for _, one := range []struct {
		taken    string
		size     int
		launches [][]captured
		mutate   func(int, []act) []act
		found    string
	}{
		{"clearing filled", 2, times(3, sum), without(is(clears, filled)), "wrong data"},
		{"clearing left", 2, times(3, sum), without(is(clears, left)), "wrong data"},
		{"clearing reduced", 2, times(3, sumOfTwo), without(is(clears, reduced)), "wrong data"},
		{"the wait for filled", 2, times(3, sum), without(is(waits, filled)), "wrong data"},
		{"the wait for left", 2, times(3, sum), without(is(waits, left)), "wrong data"},
		{"the wait for reduced", 2, times(3, sumOfTwo), without(is(waits, reduced)), "wrong data"},
		{"the look at tokens of ranks that do not read", 3, readers, looks, "wrong data"},
		{"filled behind the copy into the slot", 2, times(2, sum), later(func(a act) bool {
			return a.kind == moves && a.move.From[0].Space == plan.Input && a.move.To[0].Space == plan.Slot
		}, is(sets, filled)), "wrong data"},
		{"left behind the copy out of the slot", 2, times(3, gather), later(reading, is(sets, left)), "wrong data"},
		{"filled cleared before left is given", 2, times(3, sum), later(is(clears, filled), is(sets, left)), "deadlock"},
		{"left cleared before filled is given", 2, times(3, sum), later(is(clears, left), is(sets, filled)), "deadlock"},
		{"tokens cleared behind their waits, not at the end of a launch", 2, times(3, sum), later(func(a act) bool { return a.kind == clears }, func(a act) bool { return a.kind == ends }), "deadlock"},
		{"left in barriers", 2, times(3, barrier), without(func(a act) bool { return a.word == left && a.kind <= sets }), "deadlock"},
		{"both ranks wait in barriers", 2, times(3, barrier), without(is(waits, filled)), "has not begun it"},
	} {
		t.Run(one.taken, func(t *testing.T) {
			_, err := explore(one.size, one.launches, one.mutate)
			require.ErrorContains(t, err, one.found)
		})
	}
}
