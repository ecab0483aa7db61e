package shmem

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFreeListIsFirstFitAndJoinsNeighbours(t *testing.T) {
	l := newFreeList(Range{4096, 10 * 4096}, 4096)
	take := func(n, align int64, want Range) Range {
		t.Helper()
		r, ok := l.take(n, align)
		if !ok || r != want {
			t.Fatalf("take(%d, %d) = %v %v, want %v", n, align, r, ok, want)
		}
		return r
	}
	give := func(r Range) {
		t.Helper()
		require.NoError(t, l.retire(r))
		l.give(r)
	}
	a := take(1, 0, Range{4096, 4096})
	b := take(8192, 0, Range{8192, 8192})
	c := take(1, 16384, Range{16384, 4096})
	d := take(1, 32768, Range{32768, 4096})
	give(b)
	take(4097, 4096, b) // the hole that fits first
	give(b)
	give(a)
	give(d)
	give(c)
	if !slices.Equal(l.free, []Range{{4096, 10 * 4096}}) || l.inUse() != 0 || l.largest() != 10*4096 {
		t.Errorf("free %v, %d in use", l.free, l.inUse())
	}
}

func TestFreeListAgainstAMapOfPages(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const pages = 64
	l := newFreeList(Range{0, pages * 4096}, 4096)
	var taken [pages]bool
	var live []Range
	for step := range 5000 {
		if rng.IntN(2) == 0 {
			n, align := 1+rng.Int64N(8*4096), int64(4096)<<rng.IntN(4)
			r, ok := l.take(n, align)
			if fits := firstFit(taken[:], n, align); ok != (fits >= 0) || ok && r != (Range{fits, roundUp(n, 4096)}) {
				t.Fatalf("step %d: take(%d, %d) = %v %v, expected offset %d", step, n, align, r, ok, fits)
			}
			if ok {
				live = append(live, r)
				mark(taken[:], r, true)
			}
		} else if len(live) > 0 {
			i := rng.IntN(len(live))
			if err := l.retire(live[i]); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			l.give(live[i])
			mark(taken[:], live[i], false)
			live = slices.Delete(live, i, i+1)
		}
		for i := 1; i < len(l.free); i++ {
			if l.free[i-1].End() >= l.free[i].Off {
				t.Fatalf("step %d: %v is not sorted and joined", step, l.free)
			}
		}
	}
}

func mark(taken []bool, r Range, v bool) {
	for p := r.Off / 4096; p < r.End()/4096; p++ {
		taken[p] = v
	}
}

func firstFit(taken []bool, n, align int64) int64 {
	need := int(roundUp(n, 4096) / 4096)
	for off := int64(0); off/4096+int64(need) <= int64(len(taken)); off += align {
		if p := int(off / 4096); !slices.Contains(taken[p:p+need], true) {
			return off
		}
	}
	return -1
}
