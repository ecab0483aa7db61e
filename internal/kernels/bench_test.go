package kernels

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"sagecomm/internal/coll"
)

var benchSizes = []int{64, 1 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}

func sizeName(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%dMiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}

// touched returns memory whose pages are present: reading untouched memory would measure page faults, or one page of
// zeros.
func touched(n int) []byte {
	b := aligned(n)
	for i := 0; i < n; i += 512 {
		b[i] = 1
	}
	return b
}

// BenchmarkReduce measures reductions in place: dst is the first source, as in a collective. It reports the bytes of the
// result; a reduce of 8 sources reads eight times as many.
func BenchmarkReduce(b *testing.B) {
	for _, name := range Names() {
		for _, dtype := range []coll.DataType{coll.Float32, coll.BFloat16, coll.Float16} {
			for _, n := range []int{2, 8} {
				for _, size := range benchSizes {
					b.Run(fmt.Sprintf("%s/%v/sources=%d/%s", name, dtype, n, sizeName(size)), func(b *testing.B) {
						force(b, name)
						var pins runtime.Pinner
						defer pins.Unpin()
						srcs := make([]unsafe.Pointer, n)
						for k := range srcs {
							memory := touched(size)
							srcs[k] = address(memory)
							pins.Pin(srcs[k])
						}
						b.SetBytes(int64(size))
						b.ResetTimer()
						testRepeatReduce(srcs[0], &srcs[0], n, size/dtype.Size(), int(dtype), int(coll.Sum), b.N)
					})
				}
			}
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, name := range Names() {
		for _, stream := range []bool{false, true} {
			for _, size := range benchSizes {
				b.Run(fmt.Sprintf("%s/stream=%v/%s", name, stream, sizeName(size)), func(b *testing.B) {
					force(b, name)
					dst, src := touched(size), touched(size)
					b.SetBytes(int64(size))
					b.ResetTimer()
					testRepeatCopy(dst, src, stream, b.N)
				})
			}
		}
	}
}

// BenchmarkReduceInto measures the extra cost for callers in Go: checks, the call into C, and pinning.
func BenchmarkReduceInto(b *testing.B) {
	for _, n := range []int{2, 3} {
		b.Run(fmt.Sprintf("sources=%d/64B", n), func(b *testing.B) {
			srcs := make([][]byte, n)
			for k := range srcs {
				srcs[k] = aligned(64)
			}
			for range b.N {
				if err := ReduceInto(srcs[0], nil, srcs, coll.Float32, coll.Sum, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
