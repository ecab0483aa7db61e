package kernels

import (
	"math"
	"math/rand"
	"unsafe"

	"sagecomm/internal/coll"
)

// The reference implements kernels.h one element at a time in Go's arithmetic. It shares no technique with the
// kernels: it decodes and rounds 16-bit floats with math.Ldexp and math.RoundToEven.

type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// view returns the memory of b, which must be aligned, as elements.
func view[T number](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

// reference reduces srcs, whose memory is aligned, and returns aligned memory.
func reference(srcs [][]byte, t coll.DataType, op coll.ReduceOp, divisor int) []byte {
	out := aligned(len(srcs[0]))
	switch t {
	case coll.Int8:
		refIntegers(out, srcs, op, func(x int8) int8 { return int8(int64(x) / int64(divisor)) })
	case coll.Int16:
		refIntegers(out, srcs, op, func(x int16) int16 { return int16(int64(x) / int64(divisor)) })
	case coll.Int32:
		refIntegers(out, srcs, op, func(x int32) int32 { return int32(int64(x) / int64(divisor)) })
	case coll.Int64:
		refIntegers(out, srcs, op, func(x int64) int64 { return x / int64(divisor) })
	case coll.Uint8:
		refIntegers(out, srcs, op, func(x uint8) uint8 { return uint8(uint64(x) / uint64(divisor)) })
	case coll.Uint16:
		refIntegers(out, srcs, op, func(x uint16) uint16 { return uint16(uint64(x) / uint64(divisor)) })
	case coll.Uint32:
		refIntegers(out, srcs, op, func(x uint32) uint32 { return uint32(uint64(x) / uint64(divisor)) })
	case coll.Uint64:
		refIntegers(out, srcs, op, func(x uint64) uint64 { return x / uint64(divisor) })
	case coll.Bool:
		refBools(out, srcs, op)
	case coll.Float16:
		refHalves(out, srcs, op, divisor, fp16)
	case coll.BFloat16:
		refHalves(out, srcs, op, divisor, bf16)
	case coll.Float32:
		refFloats(view[float32](out), srcs, op, float32(divisor))
	case coll.Float64:
		refFloats(view[float64](out), srcs, op, float64(divisor))
	case coll.Complex64:
		refComplex(view[float32](out), srcs, op, float32(divisor))
	case coll.Complex128:
		refComplex(view[float64](out), srcs, op, float64(divisor))
	}
	return out
}

func refIntegers[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](
	out []byte, srcs [][]byte, op coll.ReduceOp, quotient func(T) T) {
	for i := range view[T](out) {
		acc := view[T](srcs[0])[i]
		for _, s := range srcs[1:] {
			x := view[T](s)[i]
			switch op {
			case coll.Sum, coll.Avg:
				acc += x
			case coll.Product:
				acc *= x
			case coll.Min:
				acc = min(acc, x)
			case coll.Max:
				acc = max(acc, x)
			case coll.BAnd:
				acc &= x
			case coll.BOr:
				acc |= x
			case coll.BXor:
				acc ^= x
			}
		}
		if op == coll.Avg {
			acc = quotient(acc)
		}
		view[T](out)[i] = acc
	}
}

func refBools(out []byte, srcs [][]byte, op coll.ReduceOp) {
	for i := range out {
		trues := 0
		for _, s := range srcs {
			if s[i] != 0 {
				trues++
			}
		}
		var r bool
		switch op {
		case coll.Sum, coll.Max, coll.BOr:
			r = trues > 0
		case coll.Product, coll.Min, coll.BAnd:
			r = trues == len(srcs)
		case coll.BXor:
			r = trues%2 == 1
		}
		if r {
			out[i] = 1
		}
	}
}

// combine is one step of a reduce of floats. The conversions forbid Go to fuse or widen.
func combine[T float32 | float64](op coll.ReduceOp, a, b T) T {
	switch op {
	case coll.Product:
		return T(a * b)
	case coll.Min, coll.Max:
		switch {
		case a != a:
			return a
		case b != b:
			return b
		case a == b: // of -0 and +0 the earlier one
			return a
		case (b < a) == (op == coll.Min):
			return b
		}
		return a
	}
	return T(a + b)
}

func refFloats[T float32 | float64](out []T, srcs [][]byte, op coll.ReduceOp, divisor T) {
	for i := range out {
		acc := view[T](srcs[0])[i]
		for _, s := range srcs[1:] {
			acc = combine(op, acc, view[T](s)[i])
		}
		if op == coll.Avg {
			acc /= divisor
		}
		out[i] = acc
	}
}

func refComplex[T float32 | float64](out []T, srcs [][]byte, op coll.ReduceOp, divisor T) {
	if op != coll.Product {
		refFloats(out, srcs, op, divisor)
		return
	}
	for i := 0; i < len(out); i += 2 {
		a, b := view[T](srcs[0])[i], view[T](srcs[0])[i+1]
		for _, s := range srcs[1:] {
			c, d := view[T](s)[i], view[T](s)[i+1]
			ac, bd, ad, bc := T(a*c), T(b*d), T(a*d), T(b*c)
			a, b = T(ac-bd), T(ad+bc)
		}
		out[i], out[i+1] = a, b
	}
}

// half is a 16-bit float format.
type half struct {
	mantissa int // stored bits
	bias     int
}

var (
	fp16 = half{10, 15}
	bf16 = half{7, 127}
)

func (h half) decode(bits uint16) float32 {
	sign := 1.0
	if bits>>15 == 1 {
		sign = -1
	}
	fraction, exponent := int(bits)&(1<<h.mantissa-1), int(bits)&0x7fff>>h.mantissa
	switch {
	case exponent == 2*h.bias+1 && fraction != 0:
		return float32(math.NaN())
	case exponent == 2*h.bias+1:
		return float32(math.Inf(int(sign)))
	case exponent == 0:
		return float32(sign * math.Ldexp(float64(fraction), 1-h.bias-h.mantissa))
	}
	return float32(sign * math.Ldexp(float64(fraction+1<<h.mantissa), exponent-h.bias-h.mantissa))
}

func (h half) encode(f float32) uint16 {
	infinity := uint16(2*h.bias+1) << h.mantissa
	sign := uint16(0)
	if math.Signbit(float64(f)) {
		sign = 1 << 15
	}
	x := math.Abs(float64(f))
	switch {
	case x != x:
		return infinity | 1<<(h.mantissa-1)
	case math.IsInf(x, 0):
		return sign | infinity
	case x == 0:
		return sign
	}
	_, e := math.Frexp(x)          // x = m 2^e, 1/2 <= m < 1
	exponent := max(e-1, 1-h.bias) // of the leading bit, or that of denormals
	units := math.RoundToEven(math.Ldexp(x, h.mantissa-exponent))
	// Rounding up to the next power of two carries into the exponent, and from the largest number to infinity.
	bits := uint64(units) + uint64(exponent-(1-h.bias))<<h.mantissa
	return sign | uint16(min(bits, uint64(infinity)))
}

func refHalves(out []byte, srcs [][]byte, op coll.ReduceOp, divisor int, h half) {
	for i := range view[uint16](out) {
		acc := h.decode(view[uint16](srcs[0])[i])
		for _, s := range srcs[1:] {
			acc = combine(op, acc, h.decode(view[uint16](s)[i]))
		}
		if op == coll.Avg {
			acc /= float32(divisor)
		}
		view[uint16](out)[i] = h.encode(acc)
	}
}

// refScale is the reference for ScaleInto.
func refScale(src []byte, t coll.DataType, factor float64) []byte {
	out := aligned(len(src))
	switch t {
	case coll.Float16, coll.BFloat16:
		h := fp16
		if t == coll.BFloat16 {
			h = bf16
		}
		for i, x := range view[uint16](src) {
			view[uint16](out)[i] = h.encode(h.decode(x) * float32(factor))
		}
	case coll.Float32, coll.Complex64:
		for i, x := range view[float32](src) {
			view[float32](out)[i] = x * float32(factor)
		}
	default:
		for i, x := range view[float64](src) {
			view[float64](out)[i] = x * factor
		}
	}
	return out
}

// canonical replaces every NaN by one NaN, because signs and payloads are not specified.
func canonical(b []byte, t coll.DataType) []byte {
	c := aligned(len(b))
	copy(c, b)
	switch t {
	case coll.Float16, coll.BFloat16:
		infinity := uint16(0x7c00)
		if t == coll.BFloat16 {
			infinity = 0x7f80
		}
		for i, x := range view[uint16](c) {
			if x&0x7fff > infinity {
				view[uint16](c)[i] = 0x7fff
			}
		}
	case coll.Float32, coll.Complex64:
		for i, x := range view[uint32](c) {
			if x&0x7fffffff > 0x7f800000 {
				view[uint32](c)[i] = 0x7fffffff
			}
		}
	case coll.Float64, coll.Complex128:
		for i, x := range view[uint64](c) {
			if x&^(1<<63) > 0x7ff<<52 {
				view[uint64](c)[i] = 1<<63 - 1
			}
		}
	}
	return c
}

func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// contributions makes the inputs of n ranks. Most positions of a float hold moderate numbers at all ranks, so that a
// reduce of many sources does not become NaN; the others are random bits, or zeros, denormals, infinities and NaN.
func contributions(r *rand.Rand, t coll.DataType, count, n int) [][]byte {
	srcs := make([][]byte, n)
	for k := range srcs {
		srcs[k] = aligned(count * t.Size())
		r.Read(srcs[k])
	}
	parts := count
	if t == coll.Complex64 || t == coll.Complex128 {
		parts *= 2
	}
	for i := range parts {
		kind := r.Intn(8)
		for _, s := range srcs {
			moderate := r.NormFloat64()
			pick := r.Intn(8)
			switch t {
			case coll.Bool:
				if kind < 6 {
					s[i] &= 1
				}
			case coll.Float16, coll.BFloat16:
				h, infinity := fp16, uint16(0x7c00)
				if t == coll.BFloat16 {
					h, infinity = bf16, 0x7f80
				}
				x := &view[uint16](s)[i]
				if kind < 6 {
					*x = h.encode(float32(moderate))
				} else if kind == 6 {
					*x = *x&0x8000 | []uint16{0, 0, 1, infinity, infinity | 1, infinity - 1, 3, 1 << h.mantissa}[pick]
				}
			case coll.Float32, coll.Complex64:
				x := &view[uint32](s)[i]
				if kind < 6 {
					*x = math.Float32bits(float32(moderate))
				} else if kind == 6 {
					*x = *x&(1<<31) | []uint32{0, 0, 1, 0x7f800000, 0x7f800001, 0x7f7fffff, 3, 0x00800000}[pick]
				}
			case coll.Float64, coll.Complex128:
				x := &view[uint64](s)[i]
				if kind < 6 {
					*x = math.Float64bits(moderate)
				} else if kind == 6 {
					*x = *x&(1<<63) | []uint64{0, 0, 1, 0x7ff << 52, 0x7ff<<52 | 1, 0x7ff<<52 - 1, 3, 1 << 52}[pick]
				}
			}
		}
	}
	return srcs
}
