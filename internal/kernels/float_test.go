package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

var floatTypes = []coll.DataType{coll.Float16, coll.BFloat16, coll.Float32, coll.Float64, coll.Complex64, coll.Complex128}

// everyHalf returns every 16-bit pattern once.
func everyHalf() []byte {
	b := aligned(2 << 16)
	for i := range 1 << 16 {
		view[uint16](b)[i] = uint16(i)
	}
	return b
}

// Widening and narrowing every 16-bit float gives it back; a signalling NaN comes back quiet, its payload kept.
func TestHalvesSurviveTheWayThroughFloat(t *testing.T) {
	eachVariant(t, func(t *testing.T) {
		for dtype, f := range map[coll.DataType]struct{ infinity, quiet uint16 }{
			coll.Float16: {0x7c00, 0x0200}, coll.BFloat16: {0x7f80, 0x0040},
		} {
			src := everyHalf()
			dst := aligned(len(src))
			require.NoError(t, ReduceInto(dst, nil, [][]byte{src}, dtype, coll.Sum, 1))
			for i, x := range view[uint16](src) {
				want := x
				if x&0x7fff > f.infinity {
					want |= f.quiet
				}
				if got := view[uint16](dst)[i]; got != want {
					t.Fatalf("%v %#04x became %#04x, want %#04x", dtype, x, got, want)
				}
			}
		}
	})
}

// Products of every 16-bit float with factors that put them between two neighbours, on halfway points, among the
// denormals and beyond the largest number: each is rounded to nearest even, once.
func TestScaleMatchesReference(t *testing.T) {
	r := seeded(t)
	factors := []float64{1, -1, 0.5, 1.0 / 3, 1 + 0x1p-10, 1 + 0x1p-8, 1.5, 0x1p-10, 3 * 0x1p-15, 0x1p-24, 0x1p-25, 65504,
		65520, 3e38, 0x1p-126, 0x1p-140, math.Inf(1), math.NaN(),
		math.Float64frombits(1<<63 - 1), 0, math.Copysign(0, -1)}
	eachVariant(t, func(t *testing.T) {
		for _, dtype := range floatTypes {
			src := everyHalf()
			if dtype.Size() > 2 {
				src = contributions(r, dtype, 777, 1)[0]
			}
			for _, factor := range append(factors, r.NormFloat64(), r.ExpFloat64()) {
				dst := aligned(len(src))
				copy(dst, src)
				require.NoError(t, ScaleInto(dst, dst, dtype, factor))
				got, want := canonical(dst, dtype), canonical(refScale(src, dtype, factor), dtype)
				if i := differ(got, want); i >= 0 {
					i -= i % 2
					t.Fatalf("%v times %v: byte %d: %x became %x, want %x", dtype, factor, i, src[i&^15:i&^15+16],
						got[i&^15:i&^15+16], want[i&^15:i&^15+16])
				}
			}
		}
	})
}

func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// 16-bit sums round once: 2048 + 1 + 1 is 2050 in fp16, while a sum rounded at each step is 2048.
func TestHalvesAreRoundedOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T) {
		for _, c := range []struct {
			dtype coll.DataType
			h     half
			large float32
		}{{coll.Float16, fp16, 2048}, {coll.BFloat16, bf16, 256}} {
			bits := func(f float32) []byte { return binary.LittleEndian.AppendUint16(nil, c.h.encode(f)) }
			dst := make([]byte, 2)
			require.NoError(t, ReduceInto(dst, nil, [][]byte{bits(c.large), bits(1), bits(1)}, c.dtype, coll.Sum, 1))
			if got := c.h.decode(binary.LittleEndian.Uint16(dst)); got != c.large+2 {
				t.Errorf("%v: %v + 1 + 1 = %v", c.dtype, c.large, got)
			}
		}
	})
}

// MIN and MAX follow torch's rule for a NaN in any source, and have one result for zeros of either sign.
func TestMinMaxOfNaNAndZeros(t *testing.T) {
	nan, zero := math.NaN(), math.Copysign(0, -1)
	eachVariant(t, func(t *testing.T) {
		for _, op := range []coll.ReduceOp{coll.Min, coll.Max} {
			for _, c := range []struct {
				in   []float64
				want float64
			}{
				{[]float64{nan, 1}, nan}, {[]float64{1, nan}, nan}, {[]float64{nan, nan}, nan},
				{[]float64{1, nan, 2, 3}, nan}, {[]float64{math.Inf(-1), nan}, nan}, {[]float64{math.Inf(1), nan}, nan},
				{[]float64{0, zero}, 0}, {[]float64{zero, 0}, zero}, {[]float64{zero, 0, zero}, zero},
			} {
				// As many elements as reach each way through the loop.
				for _, count := range []int{1, 5, 16, 33, 100} {
					srcs := make([][]byte, len(c.in))
					for k, x := range c.in {
						for range count {
							srcs[k] = binary.LittleEndian.AppendUint64(srcs[k], math.Float64bits(x))
						}
					}
					dst := make([]byte, 8*count)
					require.NoError(t, ReduceInto(dst, nil, srcs, coll.Float64, op, 1))
					for i := range count {
						got := math.Float64frombits(binary.LittleEndian.Uint64(dst[8*i:]))
						if fmt.Sprint(got, math.Signbit(got) && got == 0) != fmt.Sprint(c.want, math.Signbit(c.want) && c.want == 0) {
							t.Fatalf("%v of %v, element %d of %d: %v, want %v", op, c.in, i, count, got, c.want)
						}
					}
				}
			}
		}
	})
}

// floatModes are modes that a thread of a user may be in, by processor.
var floatModes = map[string]map[string]uint64{
	"amd64": {"flush to zero": 0x1f80 | 0x8040, "round up": 0x1f80 | 0x4000, "round to zero, flush": 0x1f80 | 0xe040,
		"trap on invalid": 0x1f00},
	"arm64": {"flush to zero": 1 << 24, "round up": 1 << 22, "round to zero, flush, default NaN": 7<<22 | 1<<25},
}

// A floating-point mode that the calling thread has set (torch.set_flush_denormal) changes no bit of a result and is
// still set after the call. Fails when fp_enter() does not set the mode: the inputs are full of denormals and
// halfway points.
func TestFloatModeOfTheCallerChangesNothing(t *testing.T) {
	r := seeded(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	normal := testFloatMode()
	const sticky = 0x3f
	eachVariant(t, func(t *testing.T) {
		runtime.LockOSThread() // subtests have their own goroutine
		defer runtime.UnlockOSThread()
		eachReduce(func(dtype coll.DataType, op coll.ReduceOp) {
			for _, count := range []int{1, 7, 300} {
				srcs := contributions(r, dtype, count, 3)
				for i := 0; i < len(srcs[0]); i += 32 { // infinity minus infinity is invalid
					copy(srcs[0][i:], srcs[1][i:min(i+16, len(srcs[1]))])
				}
				want, got := aligned(len(srcs[0])), aligned(len(srcs[0]))
				reduce := func(dst []byte) {
					if err := ReduceInto(dst, nil, srcs, dtype, op, 3); err != nil {
						t.Error(err)
					}
					if coll.Defined(coll.PremulSum, dtype) == nil {
						if err := ScaleInto(dst, dst, dtype, 0x1p-7/3); err != nil {
							t.Error(err)
						}
					}
				}
				reduce(want)
				for name, mode := range floatModes[runtime.GOARCH] {
					testSetFloatMode(mode)
					reduce(got)
					after := testFloatMode()
					testSetFloatMode(normal)
					if (after^mode)&^sticky != 0 {
						t.Fatalf("%s: mode %#x before the call, %#x after it", name, mode, after)
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("%v of %v, %d elements: other bits in mode %q", op, dtype, count, name)
					}
				}
			}
		})
	})
}
