package staged

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// heap is pinned memory of a test, at which nobody looks.
type heap []byte

func (h heap) Address() unsafe.Pointer { return unsafe.Pointer(&h[0]) }

// found returns where a run finds a byte of a side.
func found(list []runner.Segment, at uint64) uintptr {
	for _, s := range list {
		if at < s.Bytes {
			return s.Data + uintptr(at)
		}
		at -= s.Bytes
	}
	return 0
}

// cutIn returns segments of random lengths, in whole elements, that are bytes long together, from an address on.
func cutIn(random *rand.Rand, from uintptr, bytes uint64) (list []runner.Segment) {
	for bytes > 0 {
		n := min(bytes, 4*(1+random.Uint64N(bytes/4)))
		list = append(list, runner.Segment{Data: from, Bytes: n})
		from += uintptr(n + 4*random.Uint64N(3))
		bytes -= n
	}
	return list
}

// TestUnitsAreTheChunks cuts random buffers: the units of a side bring each byte once, to where the run finds it, and unit k of a
// cut side is chunk k of each block. Units that are in a window together do not overlap.
func TestUnitsAreTheChunks(t *testing.T) {
	const seeds = 400
	cut, windows := 0, 0
	for seed := range uint64(seeds) {
		random := rand.New(rand.NewPCG(seed, 17))
		size := 1 + random.IntN(6)
		kind := []coll.Kind{coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter}[random.IntN(5)]
		chunk := 4 << (8 + random.IntN(10))
		program, err := runner.NewProgram(runner.Program{Kind: kind, Type: coll.Int32, Reduce: coll.Sum, Chunk: chunk,
			Stages: []runner.Stage{{Action: runner.Publish}, {Action: runner.Read, Lag: uint8(random.IntN(5))}}})
		require.NoError(t, err)
		length := 4 * (1 + random.Uint64N(4<<20))
		inBytes, outBytes := length, length
		switch kind {
		case coll.AllGather:
			outBytes *= uint64(size)
		case coll.ReduceScatter:
			inBytes *= uint64(size)
		}
		in, out := cutIn(random, 1<<40, inBytes), cutIn(random, 1<<41, outBytes)
		if kind == coll.Broadcast && random.IntN(2) == 0 {
			in = nil
		}
		op := coll.Op{Kind: kind, Type: coll.Int32, In: inBytes, Out: outBytes}
		l := layoutOf(in, out, kind != coll.Reduce || random.IntN(2) == 0)
		l.cut(op, size, program, random.IntN(4) != 0)
		memory := &block{memory: make(heap, blockHeader+l.bytes+64)}
		if l.chunk != 0 {
			cut++
		}
		if l.window != 0 {
			windows++
			if l.window < l.stride+program.Lag() {
				t.Fatalf("seed %d: a window of %d units, groups of %d, of which a run leaves one %d units later", seed, l.window, l.stride, program.Lag())
			}
		}
		for _, s := range []*side{&l.in, &l.out} {
			if !s.moved {
				continue
			}
			list, whole := s.pinned(memory), s.length()
			pos := map[uintptr]uint64{}
			at := uint64(0)
			for _, p := range s.pieces {
				pos[p.device] = at
				at += p.bytes
			}
			where := func(device uintptr) uint64 {
				for _, p := range s.pieces {
					if device >= p.device && device < p.device+uintptr(p.bytes) {
						return pos[p.device] + uint64(device-p.device)
					}
				}
				t.Fatalf("seed %d: no piece has address %x", seed, device)
				return 0
			}
			moved := uint64(0)
			_ = s.groups(l.stride, func(from, to uint32) error {
				for _, c := range s.copies(memory, l.chunk, from, to) {
					for _, off := range []uint64{0, c.Bytes / 2, c.Bytes - 1} {
						byteAt := where(c.Device + uintptr(off))
						if found(list, byteAt) != uintptr(c.Host)+uintptr(off) {
							t.Fatalf("seed %d: byte %d of %v is not where the run finds it", seed, byteAt, kind)
						}
						if s.units > 1 {
							unit := byteAt % (whole / s.blocks) / l.chunk
							if unit < uint64(from) || unit >= uint64(to) {
								t.Fatalf("seed %d: byte %d comes with units [%d, %d) and belongs to %d", seed, byteAt, from, to, unit)
							}
						}
					}
					moved += c.Bytes
				}
				return nil
			})
			if moved != whole {
				t.Fatalf("seed %d: %d bytes of %d are moved", seed, moved, whole)
			}
			if s.window != 0 && s.window%l.chunk != 0 {
				t.Fatalf("seed %d: a window of %d bytes, chunks of %d", seed, s.window, l.chunk)
			}
		}
		program.Free()
	}
	if cut < seeds/8 || windows < seeds/16 {
		t.Fatalf("%d layouts were cut, %d had windows", cut, windows)
	}
}
