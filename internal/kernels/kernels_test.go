package kernels

import (
	"bytes"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// seeded returns a generator whose seed is printed when the test fails.
func seeded(t testing.TB) *rand.Rand {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewSource(seed))
}

// eachVariant runs f once with each variant of the kernels that this machine has.
func eachVariant(t *testing.T, f func(t *testing.T)) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			force(t, name)
			f(t)
		})
	}
}

func force(t testing.TB, name string) {
	t.Helper()
	before := Active()
	require.NoError(t, Force(name))
	t.Cleanup(func() {
		require.NoError(t, Force(before))
	})
}

// eachReduce calls f for every type and reduction that is defined.
func eachReduce(f func(t coll.DataType, op coll.ReduceOp)) {
	for t := range coll.DataTypeCount {
		for op := range coll.ReduceOpCount {
			if coll.Defined(op, t) == nil {
				f(t, op)
			}
		}
	}
}

// guarded is memory at any alignment between borders, whose changes the test detects.
type guarded struct {
	whole []byte
	b     []byte
}

const border, canary = 128, 0xa5

func newGuarded(r *rand.Rand, content []byte, n int) *guarded {
	offset := border + r.Intn(64)
	g := &guarded{whole: bytes.Repeat([]byte{canary}, offset+n+border)}
	g.b = g.whole[offset : offset+n : offset+n]
	copy(g.b, content)
	return g
}

func (g *guarded) intact(n int) bool {
	front := len(g.whole) - border - n
	for i, x := range g.whole {
		if (i < front || i >= front+n) && x != canary {
			return false
		}
	}
	return true
}

// placement is where the destinations of a reduce lie: the index of a source, or one of the constants below.
type placement struct{ dst, dst2 int }

const (
	apart  = -1
	absent = -2
)

func (p placement) String() string {
	name := map[int]string{apart: "apart", absent: "absent"}
	text := func(k int) string {
		if k < 0 {
			return name[k]
		}
		return fmt.Sprintf("source %d", k)
	}
	return "dst " + text(p.dst) + ", dst2 " + text(p.dst2)
}

func placements(n int) []placement {
	list := []placement{{apart, absent}, {apart, apart}, {0, absent}, {n - 1, apart}, {apart, n / 2}}
	if n > 1 {
		list = append(list, placement{n / 2, 0}, placement{0, n - 1}, placement{n - 1, absent})
	}
	return list
}

var (
	reduceCounts  = []int{0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 4096 + 3}
	reduceSources = []int{1, 2, 3, 4, 8}
)

// Every type, reduction, length, number of sources, alignment and placement of the destinations, against the reference;
// since all variants are compared with the same bytes, they agree with each other.
func TestReduceMatchesReference(t *testing.T) {
	r := seeded(t)
	force(t, Active()) // put back at the end
	eachReduce(func(dtype coll.DataType, op coll.ReduceOp) {
		for _, n := range reduceSources {
			for _, count := range reduceCounts {
				if testing.Short() && count > 65 {
					continue
				}
				srcs := contributions(r, dtype, count, n)
				divisor := []int{n, 3, 200}[r.Intn(3)]
				want := canonical(reference(srcs, dtype, op, divisor), dtype)
				for _, name := range Names() {
					require.NoError(t, Force(name))
					for _, p := range placements(n) {
						if err := checkReduce(r, srcs, dtype, op, divisor, p, want); err != nil {
							t.Fatalf("%s: %v of %v, %d elements, %d sources, divisor %d, %v: %v",
								name, op, dtype, count, n, divisor, p, err)
						}
					}
				}
			}
		}
	})
}

func checkReduce(r *rand.Rand, srcs [][]byte, dtype coll.DataType, op coll.ReduceOp, divisor int, p placement,
	want []byte) error {
	size := len(want)
	sources := make([]*guarded, len(srcs))
	in := make([][]byte, len(srcs))
	for k, s := range srcs {
		sources[k] = newGuarded(r, s, size)
		in[k] = sources[k].b
	}
	place := func(where int) *guarded {
		switch where {
		case absent:
			return nil
		case apart:
			return newGuarded(r, nil, size)
		}
		return sources[where]
	}
	dst, dst2 := place(p.dst), place(p.dst2)
	var second []byte
	if dst2 != nil {
		second = dst2.b
	}
	if err := ReduceInto(dst.b, second, in, dtype, op, float64(divisor)); err != nil {
		return err
	}
	for which, d := range []*guarded{dst, dst2} {
		if d == nil {
			continue
		}
		if got := canonical(d.b, dtype); !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			i -= i % dtype.Size()
			inputs := make([]string, len(srcs))
			for k, s := range srcs {
				inputs[k] = fmt.Sprintf("%x", s[i:i+dtype.Size()])
			}
			return fmt.Errorf("destination %d, element %d: %x, want %x, of %s (bytes as they lie in memory)", which+1,
				i/dtype.Size(), got[i:i+dtype.Size()], want[i:i+dtype.Size()], strings.Join(inputs, " "))
		}
		if !d.intact(size) {
			return fmt.Errorf("memory beside destination %d was written", which+1)
		}
	}
	for k, s := range sources {
		if !s.intact(size) || (k != p.dst && k != p.dst2 && !bytes.Equal(s.b, srcs[k])) {
			return fmt.Errorf("source %d or memory beside it was written", k)
		}
	}
	return nil
}

// The tables hold exactly the combinations that coll defines.
func TestTablesHoldWhatIsDefined(t *testing.T) {
	eachVariant(t, func(t *testing.T) {
		for dtype := range coll.DataTypeCount {
			for op := range coll.ReduceOpCount {
				reduce, scale := testDefined(int(dtype), int(op))
				if want := coll.Defined(op, dtype) == nil; reduce != want {
					t.Errorf("%v of %v: in the table %v, defined %v", op, dtype, reduce, want)
				}
				if want := coll.Defined(coll.PremulSum, dtype) == nil; scale != want {
					t.Errorf("scaling of %v: in the table %v, defined %v", dtype, scale, want)
				}
			}
		}
	})
}

func TestReduceRefuses(t *testing.T) {
	b := func(n int) []byte { return make([]byte, n) }
	for _, c := range []struct {
		name      string
		dst, dst2 []byte
		srcs      [][]byte
		t         coll.DataType
		op        coll.ReduceOp
		divisor   float64
		want      string
	}{
		{"undefined", b(4), nil, [][]byte{b(4)}, coll.Bool, coll.Avg, 1, "AVG is not defined for bool"},
		{"no source", b(4), nil, nil, coll.Int8, coll.Sum, 1, "0 sources"},
		{"half an element", b(6), nil, [][]byte{b(6)}, coll.Int32, coll.Sum, 1, "whole elements"},
		{"second destination", b(4), b(8), [][]byte{b(4)}, coll.Int32, coll.Sum, 1, "equal length"},
		{"short source", b(8), nil, [][]byte{b(8), b(4)}, coll.Int32, coll.Sum, 1, "source 1 has 4 bytes"},
		{"divisor", b(4), nil, [][]byte{b(4)}, coll.Int32, coll.Avg, 1.5, "whole divisor"},
	} {
		err := ReduceInto(c.dst, c.dst2, c.srcs, c.t, c.op, c.divisor)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
	if err := ScaleInto(b(4), b(4), coll.Int32, 2); err == nil || !strings.Contains(err.Error(), "PREMUL_SUM") {
		t.Errorf("scaling int32: %v", err)
	}
	if err := ScaleInto(b(8), b(4), coll.Float32, 2); err == nil || !strings.Contains(err.Error(), "equal lengths") {
		t.Errorf("scaling into another length: %v", err)
	}
}

func TestForceKernels(t *testing.T) {
	names := Names()
	if names[len(names)-1] != "portable" {
		t.Errorf("%v does not end with the variant that runs everywhere", names)
	}
	err := Force("mmx")
	if err == nil || !strings.Contains(err.Error(), "portable") {
		t.Errorf("an unknown variant: %v, want the names that can be chosen", err)
	}
	eachVariant(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/"+Active()) {
			t.Errorf("%s is active", Active())
		}
	})
}
