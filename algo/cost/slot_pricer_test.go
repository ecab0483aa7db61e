package cost

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// rolesIn returns the plans that stand for all ranks of a group.
func rolesIn(t testing.TB, kind coll.Kind, algorithm string, at shmplan.Place) []plan.SlotPlan {
	t.Helper()
	plans, err := shmplan.Roles(kind, algorithm, at)
	require.NoError(t, err)
	return plans
}

// With one chunk nothing overlaps, so the price is the sum of the formula's terms.
func TestPriceOfOneChunkIsTheFormula(t *testing.T) {
	l := DefaultMemory()
	seconds := func(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
	for _, size := range []int{2, 4, 8} {
		n, P := 4096.0, float64(size)
		flags := (P - 1) * l.Flag
		share := n / P
		for _, c := range []struct {
			kind      coll.Kind
			algorithm string
			want      float64
		}{
			{coll.AllReduce, shmplan.OneShot, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + P*n*l.Reduce},
			{coll.AllReduce, shmplan.TwoShot, l.Step + n*l.Copy + l.Hop +
				l.Step + flags + (P-1)*share*l.Far + n*l.Reduce + (P-1)*share*l.Store + l.Hop +
				l.Step + flags + (P-1)*share*l.Far},
			{coll.Broadcast, shmplan.OneShot, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + l.Flag + n*l.Far},
			{coll.AllGather, shmplan.OneShot, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + n*l.Copy},
			{coll.Reduce, shmplan.OneShot, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + P*n*l.Reduce},
			{coll.Barrier, shmplan.OneShot, l.Step + l.Hop + l.Step + flags},
		} {
			for _, root := range []int{0, size - 1} {
				p := rolesIn(t, c.kind, c.algorithm, shmplan.Place{Size: size, Root: root, Slots: plan.LargeSlots, Chunk: 8192})
				if got, want := PriceSlots(p, 4096, DefaultMemory()), seconds(c.want); (got - want).Abs() > 1 {
					t.Errorf("%v %s, %d ranks, root %d: %v, want %v", c.kind, c.algorithm, size, root, got, want)
				}
			}
		}
	}
}

func TestPriceOverlapsChunks(t *testing.T) {
	link := DefaultMemory()
	// Readers of a broadcast work while the root publishes: the slower side counts, not the sum.
	n := uint64(1 << 20)
	p := rolesIn(t, coll.Broadcast, shmplan.OneShot, shmplan.Place{Size: 2, Slots: plan.LargeSlots, Chunk: 16 << 10})
	root := float64(n)*(link.Copy+link.Claim) + 64*link.Step
	reader := float64(n)*link.Far + 64*(link.Step+link.Flag)
	slower := max(root, reader)
	if got := PriceSlots(p, n, link).Seconds(); got < slower || got > 1.1*slower {
		t.Errorf("broadcast: %v s, the root alone takes %v s, a reader %v s", got, root, reader)
	}
	// Hops of all chunks but the first ones are hidden behind work.
	slow := link
	slow.Hop = 1e-6
	ar := rolesIn(t, coll.AllReduce, shmplan.TwoShot, shmplan.Place{Size: 2, Slots: plan.LargeSlots, Chunk: 128 << 10})
	if got := PriceSlots(ar, n, slow) - PriceSlots(ar, n, link); got > 2*time.Microsecond {
		t.Errorf("a hop that is 0.85 us longer costs %v over 8 chunks", got)
	}
}

// Multiplying the time of a chunk gives the same as playing every chunk.
func TestPriceOfManyChunksIsExact(t *testing.T) {
	link := DefaultMemory()
	for _, f := range list(shmplan.Algorithms) {
		for _, size := range []int{2, 5} {
			for _, root := range []int{0, 1} {
				p := rolesIn(t, f.kind, f.name, shmplan.Place{Size: size, Root: root, Slots: plan.LargeSlots, Chunk: 16 << 10})
				for _, bytes := range []uint64{17 << 14, 40<<14 + 100, 50<<14 - 1} {
					got, want := NewSlotPricer(p, link).Price(bytes), rolesOf(p).play(bytes, link.femto())
					if diff := got - want; diff < -1000 || diff > 1000 { // a picosecond
						t.Errorf("%v %s, %d ranks, %d bytes: %d fs, want %d fs", f.kind, f.name, size, bytes, got, want)
					}
				}
			}
		}
	}
}

// Counting whole chunks once and multiplying gives the same as counting every chunk.
func TestCountsOfManyChunksAreExact(t *testing.T) {
	for _, f := range list(shmplan.Algorithms) {
		for _, size := range []int{1, 2, 5} {
			for _, bytes := range []uint64{0, 64, 1000, 1024, 1025, 7 * 512, 20000} {
				p := rolesIn(t, f.kind, f.name, shmplan.Place{Size: size, Slots: plan.LargeSlots, Chunk: 512})
				var want SlotTraffic
				for _, other := range p {
					c := CountSlots(other, bytes)
					want = SlotTraffic{
						max(want.Steps, c.Steps), max(want.Flags, c.Flags), max(want.Near, c.Near), max(want.Far, c.Far),
						max(want.Claims, c.Claims), max(want.Reduced, c.Reduced), max(want.Stored, c.Stored),
					}
				}
				if got := NewSlotPricer(p, DefaultMemory()).Count(bytes); got != want {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v, want %+v", f.kind, f.name, size, bytes, got, want)
				}
			}
		}
	}
}

func TestPriceOfPlansBeyondTheTables(t *testing.T) {
	own := rolesIn(t, coll.AllReduce, shmplan.OneShot, shmplan.Place{Size: 2, Slots: plan.LargeSlots, Chunk: 64})
	known := PriceSlots(own, 200, DefaultMemory())
	own[0].Algorithm = "mine"
	if got := PriceSlots(own, 200, DefaultMemory()); got != known {
		t.Errorf("the same stages under another name cost %v instead of %v", got, known)
	}
	own[0].Stages = own[0].Stages[1:]
	if got := PriceSlots(own, 64, DefaultMemory()); got != math.MaxInt64 {
		t.Errorf("a plan that cannot finish costs %v", got)
	}
	if got := PriceSlots(own, 64*100, DefaultMemory()); got != math.MaxInt64 {
		t.Errorf("a long plan that cannot finish costs %v", got)
	}
	if got := PriceSlots(rolesIn(t, coll.AllReduce, shmplan.OneShot, shmplan.Place{Size: 2, Slots: plan.LargeSlots, Chunk: 64}), math.MaxUint64, DefaultMemory()); got != math.MaxInt64 {
		t.Errorf("a length beyond all time costs %v", got)
	}
	alone := PriceSlots(rolesIn(t, coll.Reduce, shmplan.OneShot, shmplan.Place{Size: 1, Slots: plan.LargeSlots, Chunk: 64}), 64, DefaultMemory())
	if alone <= 0 || alone > time.Microsecond {
		t.Errorf("a rank alone pays %v", alone)
	}
	if PriceSlots(rolesIn(t, coll.Barrier, shmplan.OneShot, shmplan.Place{Size: 2, Slots: plan.SmallSlots, Chunk: 64}), 0, Memory{}) != 1 {
		t.Error("where nothing costs anything a barrier must still end")
	}
}

func BenchmarkPrice(b *testing.B) {
	for _, size := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := rolesIn(b, coll.AllReduce, shmplan.TwoShot, shmplan.Place{Size: size, Slots: plan.LargeSlots, Chunk: 128 << 10})
			for b.Loop() {
				PriceSlots(p, 64<<20, DefaultMemory())
			}
		})
	}
}
