package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// This test explores every interleaving of the streams, drivers and CPUs of a few ranks over a few operations, whose commands are those
// of lower.go, while ranks end their waits (ending.go) or die: docs/protocol.md, section 12. It searches breadth first, so an
// error comes with a shortest way to it. Memory is that of the order of steps: all words are written and read by whole words, and a
// stream carries its commands out one after the other.
//
// Checked: an operation that a driver reports as a success has the right output; and where nothing can go on, the streams of all
// ranks that live have ended.

// cell is the length of what memory is made of here: the least share of a rank.
const cell = plan.Align

// ending is what a rank does to end its waits, and how its driver looks at a run that is done. The zero value is that of the engine.
type ending struct {
	voidLate    bool // stores come before the voids of peers
	downLate    bool // DOWN comes after the stores
	noVoid      bool // the driver does not look at void
	downFirst   bool // the driver looks at DOWN before output_taken
	voidFirst   bool // the driver looks at void before output_taken
	storeOnce   bool // what peers write later stays
	storeLittle bool // the value of the first operation's end, not of the last one
}

type exploration struct {
	t       *testing.T
	size    int
	how     ending
	abort   []int // ranks whose group may go down at any moment
	dies    int   // the rank that may die at any moment; -1: none
	stream  [][]queued
	beyond  []uint32     // by rank, word and peer
	awaited map[int]bool // words that streams wait for
	ends    [][]int      // by rank: the length of the stream with each operation
	want    [][][]uint16
	tokens  map[string]uint16
}

// snapshot is a state. Numbers are small, so a state is a text of its bytes.
type snapshot struct {
	at       []uint16 // by rank: position in the stream
	cpu      []uint16 // position in the end of waits; 0: not begun
	driver   []uint16 // 2 op + 1 if it has looked at what it looks at first
	seen     []uint16 // what it has seen there: bit 0 DOWN, bit 1 void
	failed   []uint16 // the driver has found a failure
	down     []uint16
	void     []uint16
	dead     []uint16
	words    []uint32 // by rank, word and peer
	slots    []uint16 // by rank and cell: token
	out      []uint16 // by rank, operation and cell
	from     *snapshot
	happened string
}

func (s *snapshot) clone() *snapshot {
	c := *s
	for _, list := range []*[]uint16{&c.at, &c.cpu, &c.driver, &c.seen, &c.failed, &c.down, &c.void, &c.dead, &c.slots, &c.out} {
		*list = slices.Clone(*list)
	}
	c.words = slices.Clone(c.words)
	c.from = s
	return &c
}

func (s *snapshot) key() string {
	var b []byte
	for _, list := range [][]uint16{s.at, s.cpu, s.driver, s.seen, s.failed, s.down, s.void, s.dead, s.slots, s.out} {
		for _, n := range list {
			b = binary.LittleEndian.AppendUint16(b, n)
		}
	}
	for _, n := range s.words {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return string(b)
}

func (s *snapshot) way() (text string) {
	for ; s.from != nil; s = s.from {
		text = s.happened + "\n" + text
	}
	return text
}

// newExploration lowers the operations of all ranks.
func newExploration(t *testing.T, size int, ops []coll.Kind, twoShot bool) *exploration {
	x := &exploration{t: t, size: size, dies: -1, tokens: map[string]uint16{}, awaited: map[int]bool{}}
	bytes := uint64(cell * size)
	for rank := range size {
		l := newLowering(rank, size, &algo.DeviceChoices{})
		l.slotBytes = int(bytes)
		l.choose = func(coll.Kind, int, uint64) algo.Class {
			c := algo.Class{Algorithm: shmplan.OneShot, Chunk: int(bytes)}
			if twoShot {
				c.Algorithm = shmplan.TwoShot
			}
			return c
		}
		var list []queued
		var ends []int
		for i, kind := range ops {
			op := coll.Op{Kind: kind, Type: coll.Uint8, In: bytes, Out: bytes}
			switch kind {
			case coll.Broadcast:
				op.Out = cell
			case coll.AllGather:
				op.In, op.OutBlocks = cell, slices.Repeat([]uint64{cell}, size)
			}
			for _, c := range l.lower(op) {
				if c.verb == await {
					x.awaited[x.word(rank, c.word, c.peer)] = true
				}
				if c.verb != move {
					list = append(list, queued{c, nil})
					continue
				}
				for j, to := range c.move.To { // the kernel writes one place, copies write the others
					from, reduce := c.move.From, c.move.Reduce
					if j > 0 {
						from, reduce = c.move.To[:1], false
					}
					list = append(list, queued{command{verb: move, peer: i, move: plan.Move{Reduce: reduce, From: from, To: []plan.Range{to}}}, nil})
				}
			}
			ends = append(ends, len(list))
		}
		x.stream, x.ends = append(x.stream, list), append(x.ends, ends)
		for w := range words {
			for peer := range size {
				x.beyond = append(x.beyond, l.received.value(w, peer, mostChunks))
			}
		}
	}
	s := x.start()
	for x.streams(s) { // any order without an end of waits gives the right outputs
	}
	x.want = make([][][]uint16, size)
	for rank := range size {
		for i := range ops {
			x.want[rank] = append(x.want[rank], slices.Clone(s.out[x.place(rank, i):x.place(rank, i)+size]))
		}
	}
	return x
}

func (x *exploration) place(rank, op int) int { return (rank*len(x.ends[0]) + op) * x.size }

func (x *exploration) start() *snapshot {
	list := func(n int) []uint16 { return make([]uint16, n) }
	n := x.size
	return &snapshot{at: list(n), cpu: list(n), driver: list(n), seen: list(n), failed: list(n), down: list(n), void: list(n), dead: list(n),
		words: make([]uint32, n*int(words)*n), slots: list(n * slotCount * n), out: list(n * n * len(x.ends[0]))}
}

func (x *exploration) word(rank int, w word, peer int) int {
	return (rank*int(words)+int(w))*x.size + peer
}

// streams carries out one command of some stream.
func (x *exploration) streams(s *snapshot) bool {
	for rank := range x.size {
		if x.carryOut(s, rank) {
			return true
		}
	}
	return false
}

// carryOut carries out the next command of a stream, if it can.
func (x *exploration) carryOut(s *snapshot, rank int) bool {
	if s.dead[rank] != 0 || int(s.at[rank]) == len(x.stream[rank]) {
		return false
	}
	c := x.stream[rank][s.at[rank]].command
	switch c.verb {
	case await:
		if int32(s.words[x.word(rank, c.word, c.peer)]-c.value) < 0 {
			return false
		}
	case signal:
		s.words[x.word(c.peer, c.word, rank)] = c.value
	case move:
		for i := range int(c.move.To[0].Len / cell) {
			token := s.read(x, rank, c.peer, c.move.From[0], i)
			if c.move.Reduce {
				var operands []uint16
				for _, from := range c.move.From {
					operands = append(operands, s.read(x, rank, c.peer, from, i))
				}
				token = x.token(fmt.Sprint("sum of ", operands))
			}
			to := c.move.To[0]
			if at := int(to.Off)/cell + i; to.Space == plan.Output {
				s.out[x.place(rank, c.peer)+at] = token
			} else {
				s.slots[to.Rank*slotCount*x.size+at] = token
			}
		}
	}
	s.at[rank]++
	return true
}

// read returns what a cell of a range has. For inputs it is a token of the rank, the operation and the place.
func (s *snapshot) read(x *exploration, rank, op int, r plan.Range, i int) uint16 {
	at := int(r.Off)/cell + i
	switch r.Space {
	case plan.Input:
		return x.token(fmt.Sprint("input ", rank, op, at))
	case plan.Output:
		return s.out[x.place(rank, op)+at]
	}
	return s.slots[r.Rank*slotCount*x.size+at]
}

func (x *exploration) token(text string) uint16 {
	if _, known := x.tokens[text]; !known {
		x.tokens[text] = uint16(len(x.tokens) + 1)
	}
	return x.tokens[text]
}

// release makes the next step of the CPU of a rank that ends its waits: DOWN, void of each peer, then the stores.
func (x *exploration) release(s *snapshot, rank int) bool {
	begun := s.cpu[rank] > 0 || slices.Contains(x.abort, rank) || s.failed[rank] != 0 || slices.Contains(s.dead, 1)
	if s.dead[rank] != 0 || !begun || int(s.at[rank]) == len(x.stream[rank]) && s.cpu[rank] == 0 {
		return false
	}
	var steps []func() bool
	down := func() bool { s.down[rank] = 1; return true }
	voids := func() bool {
		for peer := range x.size {
			if peer != rank {
				s.void[peer] = uint16(rank) + 1
			}
		}
		return true
	}
	var stores []func() bool
	for w := range words {
		for peer := range x.size {
			if peer == rank || !x.awaited[x.word(rank, w, peer)] { // the stream does not wait for it
				continue
			}
			stores = append(stores, func() bool {
				i := x.word(rank, w, peer)
				value := x.beyond[i] + beyond
				if x.how.storeLittle {
					value = 1<<chunkBits + mostChunks
				}
				changed := s.words[i] != value
				s.words[i] = value
				return changed
			})
		}
	}
	switch {
	case x.how.voidLate:
		steps = slices.Concat([]func() bool{down}, stores, []func() bool{voids})
	case x.how.downLate:
		steps = slices.Concat([]func() bool{voids}, stores, []func() bool{down})
	default:
		steps = slices.Concat([]func() bool{down, voids}, stores)
	}
	if int(s.cpu[rank]) < len(steps) {
		steps[s.cpu[rank]]()
		s.cpu[rank]++
		return true
	}
	if x.how.storeOnce || int(s.at[rank]) == len(x.stream[rank]) {
		return false
	}
	changed := false
	for _, store := range stores { // a round of stores, which goes on as long as the stream
		changed = store() || changed
	}
	return changed
}

// drive makes the next step of a rank's driver. It returns an error if it reports a wrong output as a success.
func (x *exploration) drive(s *snapshot, rank int) (bool, error) {
	op := int(s.driver[rank] / 2)
	if s.dead[rank] != 0 || s.failed[rank] != 0 || op == len(x.ends[rank]) {
		return false, nil
	}
	look := func() uint16 {
		v := uint16(0)
		if s.void[rank] != 0 {
			v = 2
		}
		return s.down[rank] | v
	}
	if s.driver[rank]%2 == 0 && (x.how.downFirst || x.how.voidFirst) {
		s.driver[rank]++
		s.seen[rank] = look()
		return true, nil
	}
	if int(s.at[rank]) < x.ends[rank][op] {
		return false, nil
	}
	seen := look()
	if x.how.downFirst {
		seen = seen&^1 | s.seen[rank]&1
	}
	if x.how.voidFirst {
		seen = seen&^2 | s.seen[rank]&2
	}
	if x.how.noVoid {
		seen &^= 2
	}
	s.driver[rank], s.seen[rank] = uint16(2*op+2), 0
	if seen != 0 {
		s.failed[rank] = 1
		return true, nil
	}
	if got := s.out[x.place(rank, op) : x.place(rank, op)+x.size]; !slices.Equal(got, x.want[rank][op]) {
		return true, fmt.Errorf("rank %d reports operation %d as a success with a wrong output", rank, op)
	}
	return true, nil
}

// explore returns the number of states, and the first error with the way to it.
func (x *exploration) explore() (states int, err error) {
	first := x.start()
	seen := map[string]bool{first.key(): true}
	for queue := []*snapshot{first}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		moved := false
		try := func(what string, rank int, step func(*snapshot) (bool, error)) error {
			next := s.clone()
			did, err := step(next)
			next.happened = fmt.Sprintf("%s of rank %d", what, rank)
			if err != nil {
				return fmt.Errorf("%w:\n%s", err, next.way())
			}
			if did {
				moved = true
				if key := next.key(); !seen[key] {
					seen[key] = true
					queue = append(queue, next)
				}
			}
			return nil
		}
		for rank := range x.size {
			err := try("stream", rank, func(s *snapshot) (bool, error) { return x.carryOut(s, rank), nil })
			if err == nil {
				err = try("CPU", rank, func(s *snapshot) (bool, error) { return x.release(s, rank), nil })
			}
			if err == nil {
				err = try("driver", rank, func(s *snapshot) (bool, error) { return x.drive(s, rank) })
			}
			if err == nil && rank == x.dies && s.dead[rank] == 0 {
				err = try("death", rank, func(s *snapshot) (bool, error) { s.dead[rank] = 1; return true, nil })
			}
			if err != nil {
				return len(seen), err
			}
		}
		for rank := range x.size {
			if !moved && s.dead[rank] == 0 && int(s.at[rank]) < len(x.stream[rank]) {
				return len(seen), fmt.Errorf("deadlock: the stream of rank %d waits:\n%s", rank, s.way())
			}
		}
	}
	return len(seen), nil
}

// scenarios are what is explored. Two rounds show what a rank passes on whose waits were ended; one more operation than there are slots
// shows what it overwrites.
var scenarios = []struct {
	name    string
	size    int
	ops     []coll.Kind
	twoShot bool
	abort   []int
	dies    int
	long    bool
}{
	{"two-shot, one rank aborts", 2, []coll.Kind{coll.AllReduce}, true, []int{0}, -1, false},
	{"two-shot, both abort", 2, []coll.Kind{coll.AllReduce}, true, []int{0, 1}, -1, false},
	{"slots come round, one rank aborts", 2, slices.Repeat([]coll.Kind{coll.Broadcast}, slotCount+1), false, []int{0}, -1, false},
	{"a barrier, one rank aborts", 2, []coll.Kind{coll.Barrier, coll.Broadcast}, false, []int{0}, -1, false},
	{"two-shot, a rank dies", 2, []coll.Kind{coll.AllReduce}, true, nil, 1, false},
	{"two operations, one rank aborts and the other dies", 2, []coll.Kind{coll.Broadcast, coll.Broadcast}, false, []int{1}, 0, false},
	{"two operations, one rank aborts", 2, []coll.Kind{coll.AllReduce, coll.AllReduce}, true, []int{0}, -1, true},
	{"3 ranks, one-shot, one rank aborts", 3, []coll.Kind{coll.AllReduce}, false, []int{1}, -1, true},
}

func TestEndsOfWaitsInEveryOrder(t *testing.T) {
	for _, sc := range scenarios {
		if sc.long && testing.Short() {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			x := newExploration(t, sc.size, sc.ops, sc.twoShot)
			x.abort, x.dies = sc.abort, sc.dies
			states, err := x.explore()
			require.NoError(t, err)
			t.Logf("%d states", states)
		})
	}
}

// Each protection of the end of waits is needed.
func TestEachProtectionOfEndingIsNeeded(t *testing.T) {
	const success = "as a success with a wrong output"
	for _, mutation := range []struct {
		name string
		how  ending
		want string
	}{
		{"void behind the stores", ending{voidLate: true}, success},
		{"DOWN behind the stores", ending{downLate: true}, success},
		{"no look at void", ending{noVoid: true}, success},
		{"a look at DOWN before output_taken", ending{downFirst: true}, success},
		{"a look at void before output_taken", ending{voidFirst: true}, success},
		{"one round of stores", ending{storeOnce: true}, "deadlock"},
		{"the value of the first operation", ending{storeLittle: true}, "deadlock"},
	} {
		var found []string
		for _, sc := range scenarios {
			if sc.long {
				continue
			}
			x := newExploration(t, sc.size, sc.ops, sc.twoShot)
			x.abort, x.dies, x.how = sc.abort, sc.dies, mutation.how
			if _, err := x.explore(); err != nil {
				require.ErrorContains(t, err, mutation.want, "%s in %s", mutation.name, sc.name)
				found = append(found, sc.name)
				break
			}
		}
		require.NotEmpty(t, found, "%s leads to no error", mutation.name)
		t.Logf("%s: found in %q", mutation.name, found)
	}
}
