package shadow

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// newMemory returns memory for one shadow of a group of two.
func newMemory(t testing.TB) *Memory {
	t.Helper()
	m, err := NewMemory(1, 2, runner.Short)
	require.NoError(t, err)
	t.Cleanup(m.Free)
	return m
}

// lonely returns a pair of no set, which is made.
func lonely(t testing.TB, c Config, of bell) *Pair {
	t.Helper()
	c.Memory = newMemory(t)
	x := &side{set: NewSet(), pump: &pump{bell: of}, link: c.Link, group: c.Group, rank: c.Rank}
	p := newPair(c, x)
	x.find(&c)
	x.pairs = []*Pair{p}
	require.True(t, p.Open())
	return p
}

// present returns which pages of memory are there.
func present(t *testing.T, at unsafe.Pointer, bytes int64) (list []bool) {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	require.NoError(t, err)
	defer f.Close()
	entries := make([]byte, bytes/page*8)
	_, err = f.ReadAt(entries, int64(uintptr(at)/page*8))
	require.NoError(t, err)
	for ; len(entries) > 0; entries = entries[8:] {
		list = append(list, binary.LittleEndian.Uint64(entries)>>62 != 0) // in memory, or swapped out
	}
	return list
}

func (e *end) remoteLeft() uint64 { return e.pair.left.Load() }

// ended reports whether the memory of the rank may be given back, as far as the other one is concerned.
func (e *end) ended() bool {
	return e.pair.HasLeft() && e.pair.ownWords(int(runner.HostLane)).Detached(e.pair.To).Load() == 1
}

func (e *end) leave() {
	e.pair.side.left.Store(9)
	e.pair.Wake()
}

// A pair that is not made takes no memory. One that is made has that of words, and of the channels through which something has come.
func TestMemoryOfPairs(t *testing.T) {
	a, b := strangers(t)
	all := func() (n int) {
		for _, is := range present(t, b.pair.shadow.Arena, b.pair.shadow.Bytes) {
			if is {
				n++
			}
		}
		return n
	}
	require.Zero(t, all())
	require.False(t, b.pair.made.Load())
	require.True(t, a.pair.Open())
	require.Eventually(t, b.pair.hasOpened, soon, time.Millisecond)
	require.Eventually(t, a.pair.hasOpened, soon, time.Millisecond, "an end that a frame has made says OPEN")
	words := all()
	require.LessOrEqual(t, words, 2*8, "words of both lanes lie on a few pages")
	a.publish(1)
	l := &b.pair.lanes[0]
	place := runner.Short.PlaceOf(l.channels[0].in, 1)
	require.Eventually(t, func() bool { return place.Filled.Load() == 1 }, soon, time.Millisecond)
	for k := 1; k < runner.Channels; k++ {
		next := int64(uintptr(l.channels[k].in) - uintptr(b.pair.shadow.Arena))
		begin := pages(next) // the page before may be the last one of channel k - 1
		bytes := (next + runner.Short.ChannelBytes() - begin) / page * page
		require.NotContains(t, present(t, unsafe.Add(b.pair.shadow.Arena, begin), bytes), true, "channel %d, through which nothing has come", k)
	}
	require.LessOrEqual(t, all(), words+int(runner.Short.Message)/page+3)
}

// Lanes visit the rank before anybody may store into the shadow: Open does not return before Made has.
func TestMadeBeforeOpenReturns(t *testing.T) {
	_, b := strangers(t)
	calls := 0
	b.pair.Made = func() {
		calls++
		require.False(t, b.pair.made.Load(), "others may store into the shadow before Made has returned")
	}
	require.True(t, b.pair.Open())
	require.True(t, b.pair.Open())
	require.Equal(t, 1, calls)
}

// No huge page comes for shadows, also where the system has them everywhere.
func TestMemoryHasNoHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("this kernel has no huge pages")
	}
	m := newMemory(t)
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	at, within, flags := uintptr(m.at(0)), false, ""
	for line := range strings.Lines(string(maps)) {
		var low, high uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &low, &high); n == 2 {
			within = low <= at && at < high
		}
		if within && strings.HasPrefix(line, "VmFlags:") {
			flags = line
		}
	}
	require.Contains(t, strings.Fields(flags), "nh")
}

// A message may come before OPEN, and makes the pair. What the rank sends then, and its goodbye, count as those of any pair.
func TestAMessageBeforeOpen(t *testing.T) {
	a, b := strangers(t)
	b.hold(0)
	require.True(t, a.pair.Open())
	a.publish(1)
	a.leave()
	require.Eventually(t, b.pair.made.Load, soon, time.Millisecond)
	l := &b.pair.lanes[0]
	require.Eventually(t, func() bool { return runner.SentOf(l.channels[0].in).Load() == 1 }, soon, time.Millisecond)
	require.False(t, b.pair.hasOpened())
	require.Zero(t, b.remoteLeft())
	b.goOn()
	require.Eventually(t, func() bool { return b.remoteLeft() == 9 }, soon, time.Millisecond)
	require.True(t, b.pair.hasOpened())
	require.NoError(t, b.pair.Link.Err())
}

// Ranks without a pair know of each other's goodbye, and their memory is given back.
func TestGoodbyeWithoutAPair(t *testing.T) {
	a, b := strangers(t)
	a.leave()
	require.Eventually(t, func() bool { return b.remoteLeft() == 9 }, soon, time.Millisecond)
	require.EqualValues(t, 8, b.pair.LeftAfter())
	require.True(t, a.Flush(soon))
	require.Eventually(t, a.ended, soon, time.Millisecond)
	require.False(t, b.ended())
	b.leave()
	require.Eventually(t, b.ended, soon, time.Millisecond)
	require.False(t, a.pair.made.Load() || b.pair.made.Load())
	for _, e := range []*end{a, b} {
		require.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.pairs) == 0 && len(e.sides) == 0
		}, soon, time.Millisecond)
	}
	a.node.Close()
	require.Error(t, b.loss(t))
	require.Zero(t, b.told.Load())
}

// A rank that has left makes no pair. The other rank, which has made its end before it knew, ends it by itself.
func TestPairWithARankThatHasLeft(t *testing.T) {
	a, b := strangers(t)
	b.hold(0) // LEFT waits
	a.leave()
	require.Eventually(t, a.ended, soon, time.Millisecond)
	require.False(t, a.pair.Open())
	require.True(t, b.pair.Open())
	b.publish(2)
	b.goOn()
	require.Eventually(t, func() bool { return b.remoteLeft() == 9 }, soon, time.Millisecond)
	b.leave()
	require.False(t, b.ended())
	b.pair.Detach()
	require.Eventually(t, b.ended, soon, time.Millisecond)
	require.NoError(t, a.pair.Link.Err())
	require.NoError(t, b.pair.Link.Err())
}

// The end of a link is told to ranks without a pair, unless the other rank has left.
func TestDeathWithoutAPair(t *testing.T) {
	for _, left := range []bool{false, true} {
		a, b := strangers(t)
		if left {
			a.leave()
			require.Eventually(t, func() bool { return b.remoteLeft() == 9 }, soon, time.Millisecond)
		}
		require.NotEqual(t, left, b.Needs(b.pair.Link))
		a.node.Close()
		require.Error(t, b.loss(t))
		require.Equal(t, map[bool]int32{false: 1, true: 0}[left], b.told.Load())
		require.False(t, b.late.Load())
		require.True(t, b.ended())
		require.False(t, b.pair.Open(), "nobody is there")
	}
}

// A rank that gives up in the rendezvous says so without a pair as well. The record that was prepared lies in the shadow.
func TestGiveUpWithoutAPair(t *testing.T) {
	for _, made := range []bool{false, true} {
		a, b := strangers(t)
		if made {
			b.hold(0)
			a.hold(0) // OPEN does not come before a has given up
			require.True(t, b.pair.Open())
		}
		a.pair.side.left.Store(gaveUp)
		a.pair.Wake()
		require.Eventually(t, a.pair.HasLeft, soon, time.Millisecond)
		a.goOn()
		b.goOn()
		require.Eventually(t, func() bool { return b.remoteLeft() == gaveUp }, soon, time.Millisecond)
		words := b.pair.shadowWords(int(runner.HostLane))
		require.Equal(t, "the record", string(words.FailureRecord()[:len("the record")]))
		require.Zero(t, b.pair.ownWords(int(runner.HostLane)).Detached(0).Load(), "only one of the two words may be the last access")
		require.Zero(t, b.pair.LeftAfter())
		require.False(t, b.Needs(b.pair.Link))
		require.NoError(t, b.pair.Link.Err())
	}
}

// A pair is not made behind the goodbye of a remote rank that has given up. So this rank can leave, and its memory is given back.
func TestNoPairBehindGivingUp(t *testing.T) {
	a, b := strangers(t)
	a.pair.side.left.Store(gaveUp)
	a.pair.Wake()
	require.Eventually(t, func() bool { return b.remoteLeft() == gaveUp }, soon, time.Millisecond)
	require.False(t, b.pair.Open())
	b.leave()
	b.pair.Detach()
	require.Eventually(t, b.pair.HasLeft, soon, time.Millisecond)
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.pairs) == 0 && len(b.sides) == 0
	}, soon, time.Millisecond)
	require.NoError(t, b.pair.Link.Err())
}

// Who finds that a rank without a pair has left knows its last call of the device lane by then, also where this rank makes its end later.
func TestTheLastStateComesWithLeft(t *testing.T) {
	for _, made := range []bool{false, true} {
		a, b := strangers(t)
		told := b.stated()
		require.True(t, runner.PutState(a.pair.side.own, a.pair.Rank, stateOf())) // as if a's runner had
		if made {
			a.hold(0) // OPEN does not come before a has left
			require.True(t, b.pair.Open())
		}
		a.leave()
		require.Eventually(t, func() bool { return b.remoteLeft() == 9 }, soon, time.Millisecond)
		require.EqualValues(t, 1, told.Load())
		require.Equal(t, made, b.pair.made.Load())
		device := b.pair.shadowWords(int(runner.DeviceLane))
		require.EqualValues(t, 959, device.LastCall())
		a.goOn()
		require.NoError(t, b.pair.Link.Err())
	}
}

// A pair that was removed before it was made is forgotten, and so is what comes for it.
func TestRemoveWithoutAPair(t *testing.T) {
	a, b := strangers(t)
	b.Remove(b.pair)
	require.False(t, b.pair.Open())
	require.True(t, b.pair.HasLeft())
	require.True(t, a.pair.Open())
	a.publish(1)
	a.leave()
	a.pair.Detach()
	require.Eventually(t, a.pair.HasLeft, soon, time.Millisecond)
	for on := range 3 {
		a.barrier(t, b, on)
	}
	require.False(t, b.pair.made.Load())
	require.Zero(t, b.remoteLeft())
	for range 100 { // the pump may still have the side of the one before
		c := b.pair.Config
		own, free := newOwn(t, 1)
		c.Own = own
		again, err := b.Add(c)
		require.NoError(t, err)
		require.False(t, again.HasLeft())
		require.True(t, again.side.left == again.ownWords(int(runner.HostLane)).Left(), "the words of a rank that was removed")
		b.Remove(again)
		again.Free()
		free()
	}
	again, err := b.Add(b.pair.Config)
	require.NoError(t, err)
	require.True(t, again.Open())
	require.NoError(t, b.pair.Link.Err())
	b.Remove(again)
	again.Free()
}

// What no process says about a pair at first need ends the link.
func TestForgedOpenings(t *testing.T) {
	open, left, bye := tcp.Header{Kind: tcp.Open}, tcp.Header{Kind: tcp.Left, Number: 3}, tcp.Header{Kind: tcp.Goodbye, Number: 3}
	for name, frames := range map[string][]tcp.Header{
		"OPEN twice":                       {open, open},
		"LEFT twice":                       {left, left},
		"LEFT twice, behind OPEN":          {open, left, left},
		"LEFT without a number":            {{Kind: tcp.Left}},
		"LEFT without OPEN, behind others": {{Kind: tcp.Ask}, left},
		"OPEN behind LEFT":                 {left, open},
		"LEFT of another number":           {open, bye, {Kind: tcp.Left, Number: 4}},
		"GOODBYE of another number":        {open, {Kind: tcp.Left, Number: 4}, bye},
		"GOODBYE behind LEFT":              {left, bye},
		"CLOSE behind LEFT":                {left, {Kind: tcp.Close}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := strangers(t)
			for _, h := range frames {
				h.Group, h.From, h.To = 5, 0, 1
				_ = a.pair.Link.Send(0, &h) // the link may have ended
			}
			require.ErrorIs(t, b.loss(t), errNoFrame)
		})
	}
}

// So does a state with LEFT that no rank sends.
func TestForgedStatesOfLeft(t *testing.T) {
	wrong := stateOf()
	binary.LittleEndian.PutUint64(wrong[8*4:], 1<<40)
	for name, c := range map[string]struct {
		number uint64
		state  []byte
		reason string
	}{
		"short":                 {3, stateOf()[8:], "7232 bytes, a state has 7240"},
		"of no rank":            {3, wrong, "no rank has such a state"},
		"of a rank that is not": {gaveUp, stateOf(), "number 18446744073709551615 with 7240 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := strangers(t)
			h := tcp.Header{Kind: tcp.Left, Group: 5, To: 1, Number: c.number}
			require.NoError(t, a.pair.Link.Send(0, &h, c.state))
			require.ErrorIs(t, b.loss(t), errNoFrame)
			require.ErrorContains(t, b.pair.Link.Err(), c.reason)
			require.Zero(t, b.remoteLeft())
		})
	}
}

// Both ranks of many groups open their ends, publish, leave and detach at any moment. All memory is given back, and the link goes on.
func TestRanksOpenAndLeaveAtOnce(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	a, b := strangers(t)
	for n := range uint64(60) {
		var both [2]*end
		var frees []func()
		for rank, e := range []*end{a, b} {
			own, free := newOwn(t, rank)
			frees = append(frees, free)
			p, err := e.Add(Config{Link: e.pair.Link, Group: 100 + n, Rank: rank, To: 1 - rank, Size: 2, Geometry: runner.Short, Memory: newMemory(t), Own: own, Lost: func(error) {}})
			require.NoError(t, err)
			both[rank] = &end{Set: e.Set, own: own, pair: p}
		}
		var done sync.WaitGroup
		for rank, e := range both {
			random := rand.New(rand.NewPCG(seed, 2*n+uint64(rank)))
			done.Go(func() {
				for range random.IntN(200) {
					runtime.Gosched()
				}
				if random.IntN(3) > 0 && e.pair.Open() && random.IntN(2) > 0 {
					e.publish(uint64(1 + random.IntN(runner.ChannelPlaces)))
				}
				e.leave()
				e.pair.Detach()
			})
		}
		done.Wait()
		for rank, e := range both {
			require.Eventually(t, e.ended, soon, 100*time.Microsecond, "rank %d of group %d", rank, n)
		}
		for rank, e := range both {
			e.pair.Free()
			frees[rank]()
		}
	}
	for _, e := range []*end{a, b} {
		require.NoError(t, e.pair.Link.Err())
		require.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.sides) == 1
		}, soon, time.Millisecond, "sides of groups that have ended")
	}
}
