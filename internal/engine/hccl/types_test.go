package hccl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// HCCL has neither averages, factors nor reductions of bits, and no double. Nothing takes the place of a reduction or a type silently.
func TestReductions(t *testing.T) {
	for op := range coll.ReduceOpCount {
		for d := range coll.DataTypeCount {
			r, ok := Library{}.Reduction(op, d)
			sums := op == coll.Sum || op == coll.Max || op == coll.Min
			want := sums && (d == coll.Int8 || d == coll.Int16 || d == coll.Int32 || d == coll.Int64 || d == coll.Float16 || d == coll.Float32 || d == coll.BFloat16 || d == coll.Complex64) ||
				op == coll.Product && (d == coll.Int8 || d == coll.Int32 || d == coll.Int64 || d == coll.Float16 || d == coll.Float32) ||
				d == coll.Bool && op != coll.BXor && op != coll.Avg && op != coll.PremulSum
			require.Equal(t, want, ok, "%v of %v", op, d)
			require.False(t, r.Factor)
		}
	}
}

// Every type is moved, in elements whose lengths make up its own.
func TestElements(t *testing.T) {
	for d := range coll.DataTypeCount {
		e := Library{}.Element(d)
		require.NotZero(t, e.Bytes, "%v", d)
		require.Zero(t, uint64(d.Size())%e.Bytes, "%v", d)
	}
}
