package shadow

import (
	"encoding/binary"
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
	kinds := []tcp.Kind{tcp.Message, tcp.Room, tcp.Eager, tcp.Announce, tcp.Grant, tcp.Data, tcp.Credit, tcp.Goodbye, tcp.Ask, tcp.State, tcp.Exchange, tcp.Close}
	limits := []uint32{tcp.MaxMessage, 0, tcp.MaxEager, 0, 0, tcp.MaxMessage, 0, 0, 0, 8 << 10, 4<<10 + 152, 0}
	k := int(b[0]) % len(kinds)
	h = tcp.Header{Kind: kinds[k], Lane: b[1] % 4, Channel: b[2] % 6, Group: 5, From: 0, To: 1, Number: wide(le.Uint16(b[4:])), Hash: wide(le.Uint16(b[6:])),
		Block: wide(le.Uint16(b[8:])), Taken: wide(le.Uint16(b[10:])), Tag: int32(le.Uint32(b[12:])), Type: b[16]}
	if limits[k] > 0 {
		h.Bytes = le.Uint32(b[20:]) % (limits[k] + 1)
	}
	return int(b[3]) % 3, h
}

// Whatever a remote process sends, nothing is written outside the shadow, and a frame that is refused changes nothing but the link.
func FuzzFrames(f *testing.F) {
	seed := make([]byte, 0, 40*forgedBytes)
	for n := range 40 {
		b := make([]byte, forgedBytes)
		b[0], b[3] = byte(n%12), byte(n%3)
		b[4], b[20], b[21] = byte(n/12+1), byte(100+n), byte(n%4)
		seed = append(seed, b...)
	}
	f.Add(seed)
	a, b := pairOfEnds(f) // for its link, over which nothing goes
	f.Fuzz(func(t *testing.T, input []byte) {
		own, free := newOwn(t, 1)
		defer free()
		p, err := newPair(Config{Link: b.pair.Link, Group: 5, Rank: 1, To: 0, Size: 2, Geometry: runner.Short, Own: own, Control: func(*tcp.Header, []byte) error { return nil }}, a.pair.Peer().Apart)
		require.NoError(t, err)
		defer func() {
			p.unread()
			p.Free()
		}()
		low, high := uintptrOf(p.memory), uintptrOf(p.memory)+uintptr(len(p.memory))
		for ; len(input) >= forgedBytes; input = input[forgedBytes:] {
			on, h := forged(input)
			if h.Kind == tcp.State {
				p.asking = askSent
			}
			before := [2]uint64{p.lanes[0].in.written, p.lanes[1].in.written}
			place, err := p.accept(on, &h)
			if err != nil {
				require.Equal(t, before, [2]uint64{p.lanes[0].in.written, p.lanes[1].in.written})
				return // the link would end
			}
			total := 0
			for _, s := range place {
				total += len(s)
				if h.Kind != tcp.State && h.Kind != tcp.Exchange && len(s) > 0 {
					require.True(t, uintptrOf(s) >= low && uintptrOf(s)+uintptr(len(s)) <= high)
				}
				for i := range s {
					s[i] = input[i%forgedBytes]
				}
			}
			require.EqualValues(t, h.Bytes, total)
			if _, err := p.store(on, &h); err != nil {
				return
			}
			for n := range p.lanes {
				in := &p.lanes[n].in
				require.LessOrEqual(t, in.written-p.lanes[n].own.Read(0).Load(), uint64(runner.Short.Fifo))
			}
		}
	})
}

func uintptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
