package pgbackend

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"sagecomm/internal/coll"
)

// The reference computes with whole numbers that every type holds exactly, so that one table serves all types and the
// bytes can be compared. The tests of internal/kernels check rounding.

// encode writes v as element i of b.
func encode(b []byte, t coll.DataType, i, v int) {
	at := b[i*t.Size():]
	single := math.Float32bits(float32(v))
	switch t {
	case coll.Float16:
		if v != 0 { // from bias 127 and 23 bits to bias 15 and 10
			single = single>>16&0x8000 | (single&0x7fffffff-112<<23)>>13
		}
		binary.LittleEndian.PutUint16(at, uint16(single))
	case coll.BFloat16:
		binary.LittleEndian.PutUint16(at, uint16(single>>16))
	case coll.Float32:
		binary.LittleEndian.PutUint32(at, single)
	case coll.Float64:
		binary.LittleEndian.PutUint64(at, math.Float64bits(float64(v)))
	case coll.Complex64:
		binary.LittleEndian.PutUint64(at, uint64(single)) // imaginary part 0
	case coll.Complex128:
		binary.LittleEndian.PutUint64(at, math.Float64bits(float64(v)))
		binary.LittleEndian.PutUint64(at[8:], 0)
	default:
		for k := range t.Size() {
			at[k] = byte(v >> (8 * min(k, 7)))
		}
	}
}

// contribution returns element i of the input of a rank of n. Sums, products and quotients of the numbers of up to 8
// ranks fit into 8 bits of mantissa, and averages are whole numbers.
func contribution(t coll.DataType, op coll.ReduceOp, rank, n, i int) int {
	switch {
	case t == coll.Bool:
		return (i + rank) % 3 % 2
	case op == coll.Product:
		return 1 + (i+rank)%2
	case op == coll.Avg:
		return i%5 + 2*rank + 1
	case op == coll.BAnd:
		return 96 | (i+rank)%16
	}
	return (i*7 + rank*5) % 11
}

const premulFactor = 2

// reduced returns the reference result.
func reduced(t coll.DataType, op coll.ReduceOp, n, i int) int {
	acc := contribution(t, op, 0, n, i)
	for rank := 1; rank < n; rank++ {
		v := contribution(t, op, rank, n, i)
		switch op {
		case coll.Sum, coll.Avg, coll.PremulSum:
			acc += v
		case coll.Product:
			acc *= v
		case coll.Min:
			acc = min(acc, v)
		case coll.Max:
			acc = max(acc, v)
		case coll.BAnd:
			acc &= v
		case coll.BOr:
			acc |= v
		case coll.BXor:
			acc ^= v
		}
	}
	switch {
	case op == coll.Avg:
		return acc / n // i%5 + n: no remainder
	case op == coll.PremulSum:
		return acc * premulFactor
	case t == coll.Bool && op == coll.Sum:
		return min(acc, 1)
	}
	return acc
}

func contributionBytes(t coll.DataType, op coll.ReduceOp, rank, n, count int) []byte {
	b := make([]byte, count*t.Size())
	for i := range count {
		encode(b, t, i, contribution(t, op, rank, n, i))
	}
	return b
}

func reducedBytes(t coll.DataType, op coll.ReduceOp, n, count int) []byte {
	b := make([]byte, count*t.Size())
	for i := range count {
		encode(b, t, i, reduced(t, op, n, i))
	}
	return b
}

// noise is the memory out of which patterns are cut. It is made once, because the race detector watches every byte that
// a loop writes.
var noise = func() []byte {
	b := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}()

// pattern returns bytes that identify their owner.
func pattern(rank, salt, n int) []byte {
	from := rand.New(rand.NewPCG(uint64(rank), uint64(salt))).IntN(len(noise) - n)
	return slices.Clone(noise[from : from+n])
}
