package board

import (
	"fmt"
	"math"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

// The closed formulas of the literature for n bytes, P ranks, c chunks, with P dividing each chunk into whole shares:
//
//	one-shot         out of others' slots (P-1) n, folded P n                     (vLLM, DeepSpeed: the direct exchange)
//	two-shot         2 (P-1)/P n between cores, (P-1)/P n of operands added = n folded with the own ones, results
//	                 stored to all P ranks, the own output first
//	                 (Thakur, Rabenseifner, Gropp 2005; the bound of Patarasuk and Yuan 2009)
//	broadcast        n into the root's slots, n out of them on each other rank    (Chan et al. 2007, flat tree)
//	all_gather       (P-1) n out of others' slots                                 (lower bound; Bruck et al. 1997)
//	barrier          P-1 flags, no bytes
//	reduce_scatter   (P-1) n out of others' slots, folded P n, for blocks of n    (lower bound; Chan et al. 2007)
//	all_to_all       (P-1) n out of others' slots; all in the heads here          (lower bound)
//	gather, scatter  (P-1) n out of others' slots on the root, n on the others    (lower bound)
func TestStepsAndBytesAreThoseOfTheFormulas(t *testing.T) {
	const chunks = 5
	for size := 1; size <= 33; size++ {
		chunk := uint64(64 * size)
		n, P := chunks*chunk, uint64(size)
		exchanges := chunks // of an all_to_all: the heads and what they leave
		if size > 1 {
			exchanges = 1 + int((n-min(n, uint64(HeadBytes(size)))+chunk-1)/chunk)
		}
		for _, root := range []int{0, size - 1} {
			for rank := range size {
				isRoot := rank == root
				either := func(a, b Traffic) Traffic {
					if isRoot {
						return a
					}
					return b
				}
				flags := chunks * (size - 1)
				for _, c := range []struct {
					kind      coll.Kind
					algorithm string
					want      Traffic
				}{
					{coll.AllReduce, OneShotName, Traffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n, Folded: P * n}},
					{coll.AllReduce, TwoShotName, Traffic{Steps: 3 * chunks, Flags: 2 * flags, Near: n, Far: 2 * (P - 1) * n / P, Folded: n, Stored: (P - 1) * n / P}},
					{coll.Broadcast, OneShotName, either(
						Traffic{Steps: chunks, Near: n, Claims: n},
						Traffic{Steps: chunks, Flags: chunks, Far: n})},
					{coll.AllGather, OneShotName, Traffic{Steps: 2 * chunks, Flags: flags, Near: 2 * n, Claims: n, Far: (P - 1) * n}},
					{coll.Reduce, OneShotName, either(
						Traffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n, Folded: P * n},
						Traffic{Steps: chunks, Near: n, Claims: n})},
					{coll.Reduce, TwoShotName, either(
						Traffic{Steps: 3 * chunks, Flags: 2 * flags, Near: n, Far: 2 * (P - 1) * n / P, Folded: n},
						Traffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n / P, Folded: n})},
					{coll.Barrier, OneShotName, Traffic{Steps: 2, Flags: size - 1}},
					{coll.ReduceScatter, OneShotName, Traffic{Steps: 2 * chunks, Flags: flags, Near: (P - 1) * n, Claims: (P - 1) * n, Far: (P - 1) * n, Folded: P * n}},
					{coll.AllToAll, OneShotName, Traffic{Steps: 2 * exchanges, Flags: exchanges * (size - 1), Near: P * n, Claims: (P - 1) * n, Far: (P - 1) * n}},
					{coll.Gather, OneShotName, either(
						Traffic{Steps: chunks, Flags: flags, Near: n, Far: (P - 1) * n},
						Traffic{Steps: chunks, Near: n, Claims: n})},
					{coll.Scatter, OneShotName, either(
						Traffic{Steps: 2 * chunks, Near: P * n, Claims: (P - 1) * n},
						Traffic{Steps: chunks, Flags: chunks, Far: n})},
				} {
					p, err := Build(c.kind, c.algorithm, Place{rank, size, root, LargeLane, int(chunk)})
					if err != nil {
						t.Fatal(err)
					}
					if got := Count(p, n); got != c.want {
						t.Errorf("%v %s, rank %d of %d, root %d: %+v, want %+v", c.kind, c.algorithm, rank, size, root, got, c.want)
					}
				}
			}
		}
	}
	p, _ := Build(coll.AllReduce, LocalName, Place{Size: 1, Lane: LargeLane, Chunk: 128})
	if got := Count(p, 300); got != (Traffic{Steps: 3, Near: 300}) {
		t.Errorf("a rank alone: %+v", got)
	}
}

func TestSharesCoverAChunkInOrder(t *testing.T) {
	for size := 1; size <= 70; size++ {
		for _, n := range []uint64{0, 1, 63, 64, 65, 127, 128, 1000, 4096, 8192 - 2, 16384} {
			at := uint64(0)
			for rank := range size {
				from, to := share(n, size, rank)
				if from != at || to < from {
					t.Fatalf("share %d of %d of %d bytes is [%d, %d), the one before ends at %d", rank, size, n, from, to, at)
				}
				if to < n && to%Align != 0 {
					t.Fatalf("share %d of %d of %d bytes ends at %d", rank, size, n, to)
				}
				at = to
			}
			if at != n {
				t.Fatalf("the shares of %d ranks of %d bytes end at %d", size, n, at)
			}
		}
	}
}

func TestStepsCanBeLeftEarly(t *testing.T) {
	p := OneShotAllReduce(Place{0, 2, 0, LargeLane, 64})
	n := 0
	for range Concrete(p, 640) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d steps", n)
	}
}

func TestStepsOfAPipeline(t *testing.T) {
	p := TwoShotAllReduce(Place{1, 2, 0, LargeLane, 128})
	var got []string
	for s := range Concrete(p, 256+10) {
		got = append(got, fmt.Sprint(s.Action, s.Chunk, s.Waits, len(s.Moves), s.Posts))
	}
	want := []string{
		"publish 0 [{0 consumed -4}] 1 [filled]",
		"publish 1 [{0 consumed -3}] 1 [filled]", "fold 0 [{0 filled 0}] 1 [reduced]",
		"publish 2 [{0 consumed -2}] 1 [filled]", "fold 1 [{0 filled 1}] 1 [reduced]", "collect 0 [{0 reduced 0}] 1 [consumed]",
		"fold 2 [{0 filled 2}] 0 [reduced]", "collect 1 [{0 reduced 1}] 1 [consumed]",
		"collect 2 [{0 reduced 2}] 1 [consumed]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// rolesIn returns the plans that stand for all ranks of a group.
func rolesIn(t testing.TB, kind coll.Kind, algorithm string, at Place) []Plan {
	t.Helper()
	plans, err := Roles(kind, algorithm, at)
	if err != nil {
		t.Fatal(err)
	}
	return plans
}

// With one chunk nothing overlaps, so the price is the sum of the formula's terms.
func TestPriceOfOneChunkIsTheFormula(t *testing.T) {
	l := DefaultLink()
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
			{coll.AllReduce, OneShotName, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + P*n*l.Fold},
			{coll.AllReduce, TwoShotName, l.Step + n*l.Copy + l.Hop +
				l.Step + flags + (P-1)*share*l.Far + n*l.Fold + (P-1)*share*l.Store + l.Hop +
				l.Step + flags + (P-1)*share*l.Far},
			{coll.Broadcast, OneShotName, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + l.Flag + n*l.Far},
			{coll.AllGather, OneShotName, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + n*l.Copy},
			{coll.Reduce, OneShotName, l.Step + n*(l.Copy+l.Claim) + l.Hop + l.Step + flags + (P-1)*n*l.Far + P*n*l.Fold},
			{coll.Barrier, OneShotName, l.Step + l.Hop + l.Step + flags},
		} {
			for _, root := range []int{0, size - 1} {
				p := rolesIn(t, c.kind, c.algorithm, Place{0, size, root, LargeLane, 8192})
				if got, want := Price(p, 4096, DefaultLink()), seconds(c.want); (got - want).Abs() > 1 {
					t.Errorf("%v %s, %d ranks, root %d: %v, want %v", c.kind, c.algorithm, size, root, got, want)
				}
			}
		}
	}
}

func TestPriceOverlapsChunks(t *testing.T) {
	link := DefaultLink()
	// Readers of a broadcast work while the root publishes: the slower side counts, not the sum.
	n := uint64(1 << 20)
	p := rolesIn(t, coll.Broadcast, OneShotName, Place{0, 2, 0, LargeLane, 16 << 10})
	root := float64(n)*(link.Copy+link.Claim) + 64*link.Step
	reader := float64(n)*link.Far + 64*(link.Step+link.Flag)
	slower := max(root, reader)
	if got := Price(p, n, link).Seconds(); got < slower || got > 1.1*slower {
		t.Errorf("broadcast: %v s, the root alone takes %v s, a reader %v s", got, root, reader)
	}
	// Hops of all chunks but the first ones are hidden behind work.
	slow := link
	slow.Hop = 1e-6
	ar := rolesIn(t, coll.AllReduce, TwoShotName, Place{0, 2, 0, LargeLane, 128 << 10})
	if got := Price(ar, n, slow) - Price(ar, n, link); got > 2*time.Microsecond {
		t.Errorf("a hop that is 0.85 us longer costs %v over 8 chunks", got)
	}
}

// Multiplying the time of a chunk out gives what playing every chunk through gives.
func TestPriceOfManyChunksIsExact(t *testing.T) {
	link := DefaultLink()
	for _, f := range families {
		for _, size := range []int{2, 5} {
			for _, root := range []int{0, 1} {
				p := rolesIn(t, f.kind, f.name, Place{0, size, root, LargeLane, 16 << 10})
				for _, bytes := range []uint64{17 << 14, 40<<14 + 100, 50<<14 - 1} {
					got, want := NewPricer(p, link).Price(bytes), rolesOf(p).play(bytes, link.femto())
					if diff := got - want; diff < -1000 || diff > 1000 { // a picosecond
						t.Errorf("%v %s, %d ranks, %d bytes: %d fs, want %d fs", f.kind, f.name, size, bytes, got, want)
					}
				}
			}
		}
	}
}

// Multiplying what whole chunks take gives what counting every chunk gives.
func TestCountsOfManyChunksAreExact(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 5} {
			for _, bytes := range []uint64{0, 64, 1000, 1024, 1025, 7 * 512, 20000} {
				p := rolesIn(t, f.kind, f.name, Place{0, size, 0, LargeLane, 512})
				var want Traffic
				for _, other := range p {
					c := Count(other, bytes)
					want = Traffic{
						max(want.Steps, c.Steps), max(want.Flags, c.Flags), max(want.Near, c.Near), max(want.Far, c.Far),
						max(want.Claims, c.Claims), max(want.Folded, c.Folded), max(want.Stored, c.Stored),
					}
				}
				if got := NewPricer(p, DefaultLink()).Count(bytes); got != want {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v, want %+v", f.kind, f.name, size, bytes, got, want)
				}
			}
		}
	}
}

func TestPriceOfPlansBeyondTheTables(t *testing.T) {
	own := rolesIn(t, coll.AllReduce, OneShotName, Place{0, 2, 0, LargeLane, 64})
	known := Price(own, 200, DefaultLink())
	own[0].Algorithm = "mine"
	if got := Price(own, 200, DefaultLink()); got != known {
		t.Errorf("the same stages under another name cost %v instead of %v", got, known)
	}
	own[0].Stages = own[0].Stages[1:]
	if got := Price(own, 64, DefaultLink()); got != math.MaxInt64 {
		t.Errorf("a plan that cannot finish costs %v", got)
	}
	if got := Price(own, 64*100, DefaultLink()); got != math.MaxInt64 {
		t.Errorf("a long plan that cannot finish costs %v", got)
	}
	if got := Price(rolesIn(t, coll.AllReduce, OneShotName, Place{0, 2, 0, LargeLane, 64}), math.MaxUint64, DefaultLink()); got != math.MaxInt64 {
		t.Errorf("a length beyond all time costs %v", got)
	}
	alone := Price(rolesIn(t, coll.Reduce, OneShotName, Place{0, 1, 0, LargeLane, 64}), 64, DefaultLink())
	if alone <= 0 || alone > time.Microsecond {
		t.Errorf("a rank alone pays %v", alone)
	}
	if Price(rolesIn(t, coll.Barrier, OneShotName, Place{0, 2, 0, SmallLane, 64}), 0, Link{}) != 1 {
		t.Error("where nothing costs anything a barrier must still end")
	}
}

func BenchmarkPrice(b *testing.B) {
	for _, size := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := rolesIn(b, coll.AllReduce, TwoShotName, Place{0, size, 0, LargeLane, 128 << 10})
			for b.Loop() {
				Price(p, 64<<20, DefaultLink())
			}
		})
	}
}
