package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// Offsets in shared memory, from internal/runner/shared_block.h.
const (
	atLarge     = 256                       // of a shared block: offset of the large slots
	atFailure   = 1280                      // of a shared block: the failure word
	atHash      = 8584                      // of a shared block: hash of the first slot of the small slots
	atLongest   = 8640                      // of a shared block: longest block of an all_to_all whose head lies in that slot
	atVariable  = atHash - 8 + 8*(128+8192) // of a shared block: the words of each rank, behind the small slots
	atWritten   = 0                         // of a fifo: bytes put into it
	atFrames    = 128                       // of a fifo
	frameHeader = 64
	atMessage   = 128 + (128 + 64<<10) // of a channel: its first message, in the second place
	atBytes     = atMessage + 16       // of a channel: the length of that message
)

// atChannel returns where a shared block has the offset of its rank's first channel to another rank. atTaken returns
// where it has the number of messages taken from that rank's first channel.
func atChannel(size, to int) int64 {
	return atVariable + int64((128+128+8)*size+8*runner.Channels*to)
}

func atTaken(size, from int) int64 { return atVariable + int64(128*size+128*from) }

// The ranges of a rank's memory: its shared block of the host lane, and the first one that was allocated after the
// group was made.
const (
	hostBlock  = 0
	firstLater = 4 // behind the shared blocks and flight recorders of both lanes
)

// poke writes a word into a range of a rank's memory.
func (g *Group) poke(piece int, at int64, value uint64) {
	atomic.StoreUint64(g.word(piece, at), value)
}

// peek reads a word.
func (g *Group) peek(piece int, at int64) uint64 { return atomic.LoadUint64(g.word(piece, at)) }

func (g *Group) word(piece int, at int64) *uint64 {
	g.compiling.Lock()
	r := g.memory.ranges[piece]
	g.compiling.Unlock()
	return (*uint64)(unsafe.Add(g.memory.arena.at(r), at))
}

// engineIdle returns when the engine has ended the turn in which it drove the operations before.
func engineIdle() { Get().engine.changed(Get()) }

func p2p(g *Group, kind coll.Kind, peer, tag int, b []byte) *coll.Failure {
	op := coll.Op{Kind: kind, Type: coll.Uint8, Root: peer, Tag: tag}
	var f *coll.Failure
	if kind == coll.Send {
		_, f = g.Issue(op, one(b), nil)
	} else {
		_, f = g.Issue(op, nil, one(b))
	}
	return f
}

func TestWhatIsNoMessageIsSaidAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		if g.rank == 1 {
			return asError(p2p(g, coll.Send, 0, 0, make([]byte, 8)))
		}
		return asError(p2p(g, coll.Recv, 1, 0, make([]byte, 8)))
	})
	const first = 2 * frameHeader // the length of what was sent
	engineIdle()
	w.groups[1].poke(firstLater, atFrames+first, 77)
	w.groups[1].poke(firstLater, atWritten, first+frameHeader)
	began := time.Now()
	expectScenario(t, "garbage", "bytes in a fifo that are no frame", w.eachFailure(func(g *Group) *coll.Failure {
		for g.rank == 1 && g.run.FirstCause() == nil && time.Since(began) < opTimeout { // its own pass would mend the count
			time.Sleep(time.Millisecond)
		}
		return p2p(g, coll.Recv, 1-g.rank, 0, make([]byte, 8))
	}))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	for rank, g := range w.groups {
		if f := g.Cause(); f.Rank != 1 {
			t.Errorf("rank %d names rank %d", rank, f.Rank)
		}
	}
}

func TestSlotsThatAreNowhereAreSaidAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	engineIdle()
	w.groups[1].poke(hostBlock, atLarge, 1<<45)
	began := time.Now()
	expectScenario(t, "garbage", "large slots outside the memory", w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 1 { // makes its large slots only when it is too late
			for g.run.FirstCause() == nil && time.Since(began) < opTimeout {
				time.Sleep(time.Millisecond)
			}
		}
		return sum(g, 1_000_000)
	}))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A slot whose hash differs from its owner's record of the same call is corrupted memory, not a mismatch.
func TestHashThatIsNobodysIsSaidAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	work, f := sumAsync(w.groups[1], 2) // fills its slot
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	for w.groups[1].peek(hostBlock, atHash) == 0 { // where the engine was about, it is the one that fills the slot
		time.Sleep(time.Millisecond)
	}
	w.groups[1].poke(hostBlock, atHash, 77)
	f = sum(w.groups[0], 2) // rank 1 has all that it needs
	expectScenario(t, "garbage", "a hash that fits no call", append(w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 2) }), f))
}

// A rank has filled the slot of a call that it has not made, and the calls before are equal: neither of the two is at
// fault.
func TestStepsThatAreNotEqualAreSaidAtOnce(t *testing.T) {
	const second = 128 + 8192 // from a small slot to the next one
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return asError(sum(g, 2)) })
	w.groups[1].poke(hostBlock, atHash+second, 77)
	w.groups[1].poke(hostBlock, atHash-8+second, 2) // 1 + the number of the chunk
	f := sum(w.groups[0], 2)
	expectScenario(t, "garbage", "more steps in equal calls", append(w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 2) }), f))
}

// Errors name the value that is wrong in a collective made of messages, or in the lengths of an all_to_all. Rank 1
// calls first, so that rank 0 finds what it has written.
func TestWhatCollectivesCannotMeanIsSaidAtOnce(t *testing.T) {
	const nowhere = 1 << 45
	for _, c := range []struct {
		kind      coll.Kind
		algorithm string
		piece     int
		awaited   int64 // where rank 1 has written when it has done its part; -1: it does not call
		at        int64
		value     uint64
		scenario  string
	}{
		{coll.AllReduce, sendrecv.Ring, firstLater, atMessage, atBytes, 77, "a message of a channel with another length"},
		{coll.AllReduce, sendrecv.Ring, hostBlock, atChannel(2, 0), atChannel(2, 0), nowhere, "a channel outside the memory"},
		{coll.Reduce, sendrecv.Binomial, hostBlock, -1, atTaken(2, 0), 1000, "a channel of which more was taken than was sent"},
		{coll.AllToAll, shmplan.OneShot, hostBlock, atHash, atLongest, 1 << 63, "blocks of an all_to_all longer than memory"},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			w, _ := tryWorld(t, 2, opTimeout, func(int) options { return options{"tune": fmt.Sprintf("%v:%s@chunk=64", c.kind, c.algorithm)} })
			call := func(g *Group, async bool) (runner.Work, *coll.Failure) {
				b := make([]byte, 64*(runner.ChannelPlaces+1)*2)
				return g.Issue(coll.Op{Kind: c.kind, Type: coll.Uint8, Root: 1, Async: async}, one(b), one(b))
			}
			if c.awaited >= 0 {
				work, f := call(w.groups[1], true)
				if f != nil {
					t.Fatal(f)
				}
				defer work.Release()
				began := time.Now()
				for w.groups[1].peek(c.piece, c.awaited) == 0 { // where the engine was about, it is the one that goes on
					if time.Since(began) > opTimeout {
						t.Fatal("rank 1 has written nothing there")
					}
					time.Sleep(time.Millisecond)
				}
			}
			w.groups[1].poke(c.piece, c.at, c.value)
			_, f := call(w.groups[0], false)
			expectScenario(t, "garbage", c.scenario, append(w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 2) }), f))
		})
	}
}

// The failure word names no rank, or one that has declared nothing.
func TestFailureOfNobody(t *testing.T) {
	for word, scenario := range map[uint64]string{
		77: "a failure word that names no rank",
		2:  "a failure word that names a rank without a record",
	} {
		w := newWorld(t, 2)
		w.groups[0].poke(hostBlock, atFailure, word)
		expectScenario(t, "garbage", scenario, w.eachFailure(func(g *Group) *coll.Failure {
			return p2p(g, coll.Recv, 1-g.rank, 0, make([]byte, 8)) // which nobody sends
		}))
		w.destroy()
	}
}

// A rank, or other code in its process, writes anywhere into shared memory while all ranks use it. Every operation ends
// in time, with a result or a failure.
func TestRandomWritesNeitherCrashNorHang(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const timeout = 300 * time.Millisecond
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	ends := map[string]int{} // where garbage hits is chance; the tests above check what each hit leads to
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		w := newWorld(t, 2)
		w.each(func(g *Group) error {
			if err := traffic(g, 1); err != nil { // all memory is there
				return err
			}
			return g.SetTimeout(timeout)
		})
		var stop atomic.Bool
		scribbled := make(chan struct{})
		go func() {
			defer close(scribbled)
			scribble(w.groups[1], random, &stop)
		}()
		list := w.eachFailure(func(g *Group) *coll.Failure {
			began := time.Now()
			for time.Since(began) < 30*time.Millisecond {
				if err := traffic(g, 1); err != nil {
					if took := time.Since(began); took > timeout+5*time.Second {
						t.Errorf("round %d, rank %d: %v took %v", round, g.rank, err, took)
					}
					return g.Cause()
				}
			}
			g.Abort("enough") // the other may wait
			return g.Cause()
		})
		stop.Store(true)
		<-scribbled
		w.destroy()
		for _, f := range list {
			ends[f.Status.String()]++
		}
	}
	t.Logf("%v", ends)
}

// traffic uses both sets of slots, short and long sends, and a control exchange.
func traffic(g *Group, n int) error {
	for range n {
		for _, elements := range []int{2, 100_000} {
			if f := sum(g, elements); f != nil {
				return f
			}
		}
		for i, bytes := range []int{8, 5000, 200_000} {
			b := make([]byte, bytes)
			kinds := []coll.Kind{coll.Send, coll.Recv}
			for k := range kinds {
				if f := p2p(g, kinds[(k+g.rank)%2], 1-g.rank, i, b); f != nil {
					return fmt.Errorf("%d bytes: %w", bytes, f)
				}
			}
		}
		if _, f := g.exchange(topicFusion, "traffic", make([]byte, 2*controlPart), 2*time.Second); f != nil {
			return f
		}
	}
	return nil
}

// scribble writes random words, most of them near valid values, into one place after another. Each time it prefers one
// part of the memory, so that not every run ends with the failure word.
func scribble(g *Group, random *rand.Rand, stop *atomic.Bool) {
	g.compiling.Lock()
	pieces := append(g.memory.ranges[:0:0], g.memory.ranges...)
	pieces = append(pieces, g.memory.control)
	g.compiling.Unlock()
	piece := random.IntN(len(pieces))
	n := pieces[piece].Len
	n = min(n, []int64{512, 8 << 10, n}[random.IntN(3)])
	for first := true; first || !stop.Load(); first = false {
		value := random.Uint64()
		value >>= random.IntN(64)
		atomic.StoreUint64((*uint64)(unsafe.Add(g.memory.arena.at(pieces[piece]), random.Int64N(n/8)*8)), value)
		if random.IntN(8) == 0 {
			time.Sleep(time.Duration(random.IntN(20)) * time.Microsecond)
		}
	}
}
