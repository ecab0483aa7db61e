package runner_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// leftToWaiters are the programs in which a rank, at some point, leaves its collective to the thread that will wait for it. Of rooted kinds
// only the root does.
var leftToWaiters = []string{
	"all_gather one_shot", "all_reduce one_shot", "all_reduce two_shot", "all_to_all one_shot", "barrier one_shot", "reduce one_shot",
	"reduce two_shot", "reduce_scatter one_shot",
}

// A collective that its caller has begun is left to a waiter where the rank has published all its data, in a program of one chunk over slots
// that every rank fills (docs/protocol.md, section 4). The test takes that word for word: the plans say which programs these are, and
// what a rank still publishes between a stop and the end of its collective is what it owed. Ranks are driven by hand, in random turns,
// so they stop wherever a peer may be late.
func TestWhatIsLeftToAWaiter(t *testing.T) {
	const seed = 20261128
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	left := map[string]bool{}
	stops := 0
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		for _, c := range casesOf(kind) {
			w := openWorld(t, c)
			for _, s := range w.play(t, random) {
				stops++
				if s.mayBeLeft() {
					left[fmt.Sprint(c.kind, " ", c.algorithm)] = true
				}
				if s.owes == s.mayBeLeft() {
					t.Errorf("%v: rank %d, in collective %d: owes %t, has yet to publish %t, knows its chunks %t", c, s.rank, s.number, s.owes, s.more, s.knows)
				}
				if s.mayBeLeft() && kind.Rooted() && s.rank != c.root {
					t.Errorf("%v: rank %d is not the root", c, s.rank)
				}
			}
			w.close()
		}
	}
	t.Logf("%d stops", stops)
	require.Equal(t, leftToWaiters, slices.Sorted(maps.Keys(left)))
}

// calls are so many that small slots are used again: then a rank also stops before it has published anything.
const calls = 12

// program is one collective, which a group carries out several times.
type program struct {
	kind       coll.Kind
	algorithm  string
	size, root int
	bytes      int // of the buffer, or of each block
	others     int // of an all_to_all: of the blocks that all ranks but rank 0 have, if not 0
	slots      plan.Slots
	chunk      int
	messages   bool
}

func (c program) String() string {
	return fmt.Sprintf("%v %s, %d ranks, root %d, %d bytes (others: %d), %v slots, chunks of %d", c.kind, c.algorithm, c.size, c.root, c.bytes, c.others, c.slots, c.chunk)
}

func casesOf(kind coll.Kind) (list []program) {
	for size := 2; size <= 4; size++ {
		for _, root := range []int{0, size - 1} {
			if root != 0 && !kind.Rooted() {
				break
			}
			c := program{kind: kind, size: size, root: root, chunk: 256}
			for _, c.algorithm = range shmplan.Algorithms(kind) {
				for _, c.slots = range []plan.Slots{plan.SmallSlots, plan.LargeSlots} {
					if _, err := shmplan.Build(kind, c.algorithm, c.place(0)); err == nil { // it can use these slots
						list = append(list, c.ofLengths(0, 4, 256, 640)...)
						if heads := c.heads(); heads > 0 {
							list = append(list, c.ofLengths(heads, heads+4, heads+640)...)
							c.others = 4 // they learn that there is a chunk when they read the heads
							list = append(list, c.ofLengths(heads+4, heads+640)...)
							c.others = 0
						}
					}
				}
			}
			c.messages = true
			for _, c.algorithm = range sendrecv.Algorithms(kind) {
				list = append(list, c.ofLengths(0, 4, 640)...)
			}
		}
	}
	return list
}

func (c program) ofLengths(lengths ...int) (list []program) {
	for _, c.bytes = range lengths {
		list = append(list, c)
	}
	return list
}

func (c program) place(rank int) shmplan.Place {
	return shmplan.Place{Rank: rank, Size: c.size, Root: c.root, Slots: c.slots, Chunk: c.chunk}
}

func (c program) heads() int { return shmplan.Make(c.kind, c.algorithm, c.place(0)).Head }

// lengths returns the lengths of a rank's buffers; -1: it has none.
func (c program) lengths(rank int) (in, out int64) {
	one, all := int64(c.bytes), int64(c.bytes*c.size)
	switch c.kind {
	case coll.Barrier:
		return -1, -1
	case coll.AllGather, coll.Gather:
		in, out = one, all
	case coll.ReduceScatter, coll.Scatter:
		in, out = all, one
	case coll.AllToAll:
		in, out = int64(c.block(rank)*c.size), 0
		for from := range c.size {
			out += int64(c.block(from))
		}
	default:
		in, out = one, one
	}
	if !c.kind.Rooted() || rank == c.root {
		return in, out
	}
	if c.kind == coll.Broadcast || c.kind == coll.Scatter {
		return -1, out
	}
	return in, -1
}

// block returns the length of the blocks that a rank has for each other one.
func (c program) block(rank int) int {
	if c.others > 0 && rank > 0 {
		return c.others
	}
	return c.bytes
}

// blocks returns the lengths of the blocks of the output; nil: they are equal.
func (c program) blocks() (list []uint64) {
	for rank := 0; c.others > 0 && rank < c.size; rank++ {
		list = append(list, uint64(c.block(rank)))
	}
	return list
}

// mayBeLeft returns whether such a collective may be left to a waiter at all.
func (c program) mayBeLeft(t *testing.T) bool {
	if c.messages {
		return false
	}
	for rank := range c.size {
		p, err := shmplan.Build(c.kind, c.algorithm, c.place(rank))
		require.NoError(t, err)
		if p.Chunks(uint64(c.bytes)) != 1 || !slices.ContainsFunc(p.Stages, func(s plan.Stage) bool { return s.Action == plan.Publish }) {
			return false
		}
	}
	return true
}

// world is a group whose ranks are in this process.
type world struct {
	c      program
	may    bool
	memory []byte
	used   int64
	ranks  []*runner.Group
	runs   [][]runner.QueuedRun
}

const worldBytes = 64 << 20 // pages that nobody touches take no memory

// take returns the offset of new memory. All arenas begin at the same address, so it is valid in each.
func (w *world) take(n int64) int64 {
	at := w.used
	w.used += (n + 4095) &^ 4095
	return at
}

func (w *world) at(offset int64) unsafe.Pointer { return unsafe.Pointer(&w.memory[offset]) }

func openWorld(t *testing.T, c program) *world {
	memory, err := syscall.Mmap(-1, 0, worldBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	w := &world{c: c, may: c.mayBeLeft(t), memory: memory, used: 4096} // the first page has the engine's bell
	peers := make([]runner.Peer, c.size)
	for i := range peers {
		peers[i] = runner.Peer{Arena: w.at(0), Bytes: worldBytes}
		for lane := range peers[i].Shared {
			peers[i].Shared[lane] = w.take(runner.SharedBlockBytes(runner.Lane(lane), c.size))
			runner.FormatSharedBlock(w.at(peers[i].Shared[lane]), runner.Lane(lane), i, c.size, 0)
		}
		require.True(t, peers[i].Check(i, c.size))
	}
	for i := range peers {
		g, err := runner.OpenGroup(runner.Config{Rank: i, Timeout: time.Minute, StreamBytes: 1 << 40, Peers: peers, Geometry: runner.Short})
		require.NoError(t, err)
		w.ranks = append(w.ranks, g)
	}
	return w
}

func (w *world) close() {
	for _, g := range w.ranks {
		g.Down(&coll.Failure{Status: coll.Aborted, Rank: -1})
		g.Close()
	}
	_ = syscall.Munmap(w.memory)
}

// compile makes the program of a rank, and the slots and channels that it needs, as the engine of the host does.
func (w *world) compile(t *testing.T, rank int) runner.Compiled {
	g, c := w.ranks[rank], w.c
	op := coll.Op{Kind: c.kind, Type: coll.Int32}
	if c.messages {
		p, err := sendrecv.Build(c.kind, c.algorithm, sendrecv.Place{Rank: rank, Size: c.size, Root: c.root, Chunk: c.chunk})
		require.NoError(t, err)
		for _, s := range p.Steps {
			if s.Op == plan.Send && !g.HasChannel(s.Peer, s.Channel) {
				g.SetChannel(s.Peer, s.Channel, w.take(g.ChannelBytes()))
			}
		}
		compiled, err := host.CompileSendRecv(p, op, g.MessageBytes())
		require.NoError(t, err)
		return compiled
	}
	p, err := shmplan.Build(c.kind, c.algorithm, c.place(rank))
	require.NoError(t, err)
	if c.slots == plan.LargeSlots && !g.HasLarge() {
		g.SetLarge(w.take(runner.LargeSlots * runner.LargeStride))
	}
	compiled, err := host.Compile(p, op)
	require.NoError(t, err)
	return compiled
}

// stop is where a rank could not go on in one of its collectives.
type stop struct {
	rank, number int
	owes         bool // what the runner says
	published    uint64
	knows        bool // how many chunks there are: it has read the heads, if there are some
	may          bool // the program may be left to a waiter
	more         bool // the rank has published something between this stop and the end
}

func (s stop) mayBeLeft() bool { return s.may && s.knows && !s.more }

// play carries out all calls and returns where ranks have stopped. One of the ranks is slow.
func (w *world) play(t *testing.T, random *rand.Rand) (stops []stop) {
	for rank, g := range w.ranks {
		in, out := w.c.lengths(rank)
		from, to := w.at(w.take(in)), w.at(w.take(out))
		var runs []runner.QueuedRun
		for range calls {
			runs = append(runs, g.QueueRun(w.c.kind, w.c.root, from, to, in, out, w.c.blocks(), w.compile(t, rank)))
		}
		w.runs = append(w.runs, runs)
	}
	slow, heads := random.IntN(w.c.size), !w.c.messages && w.c.heads() > 0
	done := make([]int, w.c.size)
	first := make([]int, w.c.size) // of the stops, in the present collective of each rank
	own := make([][]stop, w.c.size)
	for turn := 0; slices.Min(done) < calls; turn++ {
		require.Less(t, turn, 1_000_000, "%v: the ranks do not come to an end", w.c)
		rank := random.IntN(w.c.size)
		if done[rank] == calls || rank == slow && random.IntN(10) != 0 {
			continue
		}
		g, number := w.ranks[rank], done[rank]
		finished, owes, ok := w.runs[rank][number].Drive()
		require.True(t, ok, "%v: rank %d, collective %d", w.c, rank, number)
		if !finished {
			own[rank] = append(own[rank], stop{rank: rank, number: number, owes: owes, published: g.Published(), may: w.may,
				knows: !heads || g.ConsumedSmall() > uint64(number)})
			continue
		}
		for i := first[rank]; i < len(own[rank]); i++ {
			own[rank][i].more = own[rank][i].published != g.Published()
		}
		first[rank] = len(own[rank])
		w.runs[rank][number].Release()
		done[rank]++
	}
	return slices.Concat(own...)
}
