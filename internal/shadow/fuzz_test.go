package shadow

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// forgedBytes is the length of a frame in the input of FuzzFrames.
const forgedBytes = 24

// forged makes a header of a part of the input. Counts are small, or far too large.
func forged(b []byte) (on int, h tcp.Header) {
	wide := func(x uint16) uint64 {
		if x >= 0xf000 {
			return uint64(int64(int16(x))) // up to 2^64 - 1
		}
		return uint64(x)
	}
	le := binary.LittleEndian
	kinds := []tcp.Kind{tcp.Message, tcp.Room, tcp.Eager, tcp.Announce, tcp.Grant, tcp.Data, tcp.Credit, tcp.Goodbye, tcp.Ask, tcp.State, tcp.Exchange, tcp.Close, tcp.Open, tcp.Left}
	limits := []uint32{tcp.MaxMessage, 0, tcp.MaxEager, 0, 0, tcp.MaxMessage, 0, 0, 0, 8 << 10, 4<<10 + 152, 0, 0, 8 << 10}
	k := int(b[0]) % len(kinds)
	h = tcp.Header{Kind: kinds[k], Lane: b[1] % 4, Channel: b[2] % 6, Group: 5, From: 0, To: 1, Number: wide(le.Uint16(b[4:])), Hash: wide(le.Uint16(b[6:])),
		Block: wide(le.Uint16(b[8:])), Taken: wide(le.Uint16(b[10:])), Tag: int32(le.Uint32(b[12:])), Type: b[16]}
	if limits[k] > 0 {
		h.Bytes = le.Uint32(b[20:]) % (limits[k] + 1)
	}
	return int(b[3]) % 3, h
}

// Acts of the own rank between two frames, in the place of kinds.
const (
	kindCount     = 14
	expectMessage = kindCount + iota // of the channel, in one of the buffers
	expectPieces                     // of an operation
	takeMessages                     // the rank has taken what has come over the channel
	readFifo                         // and from the fifo
	publish                          // counts of what this rank has sent rise, so that the other one may have taken more
	giveUp
	remove
	actCount
)

// harness is a pair to which frames are given, and the buffers that it may write to.
type harness struct {
	t       *testing.T
	p       *Pair
	buffers [][]byte // with a guard at both ends
}

const guard = 32

func (x *harness) buffer(n uint32) []byte {
	b := make([]byte, guard+int(n)+guard)
	for i := range b {
		b[i] = 0xee
	}
	x.buffers = append(x.buffers, b)
	return b[guard : guard+int(n) : guard+int(n)]
}

// guarded requires that nothing was written around the buffers.
func (x *harness) guarded() {
	for _, b := range x.buffers {
		for i := range guard {
			require.EqualValues(x.t, 0xee, b[i]&b[len(b)-1-i], "around a buffer")
		}
	}
}

// act is what the own rank does.
func (x *harness) act(kind int, h *tcp.Header) {
	lane, channel := int(h.Lane)%runner.Lanes, int(h.Channel)%runner.Channels
	l := &x.p.lanes[lane]
	c := &l.channels[channel]
	switch kind {
	case expectMessage:
		x.p.Expect(runner.Payload{Lane: lane, Channel: channel, Number: h.Number, Hash: h.Hash, Block: h.Block, Data: x.buffer(h.Bytes)})
	case expectPieces:
		x.p.Expect(runner.Payload{Lane: lane, Channel: runner.Piece, Number: h.Number, Data: x.buffer(h.Bytes)})
	case takeMessages:
		c.taken.Store(c.came)
	case readFifo:
		l.in.read.Store(l.in.written)
		l.in.released.Store(l.in.eager)
	case publish:
		c.sent.Store(c.sent.Load() + h.Number%4)
		l.out.pushed.Store(l.out.pushed.Load() + h.Hash%4096)
		l.out.eager.Store(l.out.eager.Load() + h.Block%4096)
	case giveUp:
		x.p.mu.Lock()
		x.p.given = true
		x.p.mu.Unlock()
	case remove:
		x.p.mu.Lock()
		x.p.removed = true
		x.p.mu.Unlock()
	}
}

// Whatever a remote process sends, and whatever this rank waits for meanwhile, nothing is written outside the shadow and the buffers that wait, a
// payload that is diverted while it comes is whole in the shadow, and a frame that is refused changes nothing but the link.
func FuzzFrames(f *testing.F) {
	seed := make([]byte, 0, 40*forgedBytes)
	for n := range 40 {
		b := make([]byte, forgedBytes)
		b[0], b[3] = byte(n%12), byte(n%3)
		b[4], b[20], b[21] = byte(n/12+1), byte(100+n), byte(n%4)
		seed = append(seed, b...)
	}
	f.Add(seed)
	var direct []byte
	for n := range 12 { // messages and pieces that buffers wait for
		for _, kind := range []int{[]int{expectMessage, expectPieces}[n%2], []int{0, 5}[n%2], takeMessages, readFifo} {
			b := make([]byte, forgedBytes)
			b[0], b[3], b[4], b[17] = byte(kind), byte(1+n/6), byte(n/2+1), byte(n%3)
			b[20], b[21], b[22] = 0, 0x50, byte(n%2)
			direct = append(direct, b...)
		}
	}
	f.Add(direct)
	a, b := pairOfEnds(f) // for its link, over which nothing goes
	f.Fuzz(func(t *testing.T, input []byte) {
		own, free := newOwn(t, 1)
		defer free()
		p := lonely(t, Config{Link: b.pair.Link, Group: 5, Rank: 1, To: 0, Size: 2, Geometry: runner.Short, Own: own, Control: func(*tcp.Header, []byte) error { return nil }}, a.pair.bell)
		x := &harness{t: t, p: p}
		defer func() {
			x.guarded()
			p.unread()
			p.Free()
		}()
		low, high := uintptrOf(p.memory.bytes), uintptrOf(p.memory.bytes)+uintptr(len(p.memory.bytes))
		within := func(s []byte, low, high uintptr) bool {
			return uintptrOf(s) >= low && uintptrOf(s)+uintptr(len(s)) <= high
		}
		allowed := func(s []byte) bool {
			if within(s, low, high) {
				return true
			}
			for _, b := range x.buffers {
				if within(s, uintptrOf(b)+guard, uintptrOf(b)+uintptr(len(b)-guard)) {
					return true
				}
			}
			return false
		}
		for ; len(input) >= forgedBytes; input = input[forgedBytes:] {
			on, h := forged(input)
			if act := int(input[0]) % actCount; act >= kindCount {
				h.Bytes = binary.LittleEndian.Uint32(input[20:]) % (128 << 10)
				x.act(act, &h)
				continue
			}
			if h.Kind == tcp.State {
				p.asking = askSent
			}
			if h.Kind == tcp.Left {
				state := stateOf()
				state[h.Bytes%uint32(len(state))] ^= byte(h.Bytes >> 16)
				if _, err := p.storeLeft(&h, state[:len(state)*int(h.Bytes%2)]); err != nil {
					return
				}
				continue
			}
			before := [2]uint64{p.lanes[0].in.written, p.lanes[1].in.written}
			place, err := p.accept(on, &h)
			if errors.Is(err, tcp.ErrDrop) {
				continue
			}
			if err != nil {
				require.Equal(t, before, [2]uint64{p.lanes[0].in.written, p.lanes[1].in.written})
				return // the link would end
			}
			require.EqualValues(t, h.Bytes, len(slices.Concat(place...)))
			if h.Bytes > 0 {
				s := place[len(place)-1]
				if h.Kind != tcp.State && h.Kind != tcp.Exchange {
					require.True(t, allowed(s))
				}
				came := len(s)
				if input[17]%3 == 1 {
					came = len(s) / 3
				}
				for i := range came {
					s[i] = input[i%forgedBytes]
				}
				if rest := len(s) - came; rest > 0 {
					if to := p.divert(int(h.Lane)%runner.Lanes, &h, rest); to != nil {
						require.True(t, len(to) == 1 && len(to[0]) == rest && within(to[0], low, high))
						whole := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(to[0])), -came)), len(s))
						require.True(t, within(whole, low, high))
						require.Equal(t, s[:came], whole[:came], "what had come")
						s = whole
					}
					for i := came; i < len(s); i++ {
						s[i] = input[i%forgedBytes]
					}
				}
			}
			if input[17]%5 == 4 {
				x.act(remove, &h) // while the payload comes
			}
			if _, err := p.store(on, &h); err != nil {
				return
			}
			x.guarded()
			for n := range p.lanes {
				in := &p.lanes[n].in
				require.LessOrEqual(t, in.written-p.lanes[n].own.Read(0).Load(), uint64(runner.Short.Fifo))
				for k := range p.lanes[n].channels {
					c := &p.lanes[n].channels[k]
					require.LessOrEqual(t, c.came-c.taken.Load(), uint64(runner.ChannelPlaces))
				}
			}
		}
	})
}

// Frames of any group and rank find the pair or the member that they are for, are dropped, or end the link; payloads of the verdict are handed on whole.
func FuzzGroups(f *testing.F) {
	f.Add([]byte{13, 5, 0, 1, 7, 0, 14, 5, 1, 0, 9, 1, 17, 6, 0, 0, 0, 0})
	f.Add([]byte{21, 1, 0, 1, 0, 0, 22, 1, 0, 1, 3, 0, 22, 2, 0, 1, 3, 0})
	f.Add([]byte{22, 1, 0, 1, 3, 0, 2, 1, 0, 1, 1, 1})
	f.Add([]byte{9, 5, 0, 1, 1, 0, 18, 5, 0, 1, 0, 1, 2, 5, 0, 1, 1, 1})
	a, b := pairOfEnds(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		set := NewSet()
		own, free := newOwn(t, 1)
		defer free()
		link := b.pair.Link
		p := lonely(t, Config{Link: link, Group: 5, Rank: 1, To: 0, Size: 2, Geometry: runner.Short, Own: own}, a.pair.bell)
		defer func() {
			p.unread()
			p.Free()
		}()
		set.pairs[p.key()] = p
		set.sides[group{link, 5}] = []*side{p.side}
		set.pumps[link] = p.side.pump
		var told []byte
		stop, err := set.Serve(link, 5, func(h *tcp.Header, payload []byte) error {
			require.Len(t, payload, int(h.Bytes))
			told = payload
			return nil
		})
		require.NoError(t, err)
		serving := true
		for ; len(input) >= 6; input = input[6:] {
			h := tcp.Header{Kind: tcp.Kind(input[0] % 23), Group: uint64(4 + input[1]%3), From: uint32(input[2] % 3), To: uint32(input[3] % 3), Number: uint64(input[4] % 8)}
			on := int(input[5] % 3)
			if h.Kind == tcp.Left && input[4] >= 8 {
				h.Bytes = runner.StateBytes
			}
			if h.Kind == tcp.Message || isVerdict(h.Kind) && h.Kind != tcp.Lost {
				h.Bytes = 16 * uint32(input[4])
			}
			if h.Kind <= tcp.Heartbeat || h.Kind == tcp.Probe || h.Kind == tcp.Echo {
				continue
			}
			place, err := set.Place(link, on, &h)
			own := h.Group == 5 && (h.Kind == tcp.Left || h.From == 0 && h.To == 1)
			switch {
			case errors.Is(err, tcp.ErrDrop):
				require.True(t, isVerdict(h.Kind) && (h.Group != 5 || !serving) || !isVerdict(h.Kind) && !own, "%v was dropped", &h)
				continue
			case err != nil:
				return
			}
			require.True(t, own || isVerdict(h.Kind) && h.Group == 5, "%v was taken", &h)
			for _, s := range place {
				for i := range s {
					s[i] = byte(i)
				}
			}
			if input[5] >= 0xf0 && serving {
				stop()
				serving = false
			}
			told = nil
			if err := set.Arrived(link, on, &h); err != nil {
				return
			}
			if isVerdict(h.Kind) && serving {
				require.Len(t, told, int(h.Bytes))
				for i, c := range told { // without require, which would make long inputs slow
					if c != byte(i) {
						t.Fatalf("byte %d of %d of %v is %d", i, len(told), &h, c)
					}
				}
			}
		}
	})
}

func uintptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
