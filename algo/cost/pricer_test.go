package cost

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// channelCosts returns costs of the order of channels in shared memory.
func channelCosts() Costs {
	return Costs{Links: []Link{{Latency: 250e-9, Byte: 123e-12, Step: 300e-9}}, Reduce: 40e-12, Copy: 20e-12, Capacity: 4}
}

func pricerOf(t testing.TB, f family, at sendrecv.Place, c Costs) *Pricer {
	t.Helper()
	g, err := sendrecv.Plans(f.kind, f.name, at)
	require.NoError(t, err)
	return NewPricer(g, c)
}

// In every group whose symmetry is listed, the play of one rank takes exactly as long as that of all. This test fails
// if an algorithm is listed whose ranks are not alike.
func TestOneRankStandsForAll(t *testing.T) {
	seen := 0
	for _, f := range families {
		for size := 2; size <= 24; size++ {
			at := sendrecv.Place{Size: size, Chunk: size << lg(size) * plan.Unit}
			r := pricerOf(t, f, at, channelCosts())
			if r.quotient == nil {
				continue
			}
			seen++
			for _, chunks := range []uint64{0, 1, 5} {
				bytes := chunks * uint64(at.Chunk)
				if f.kind == coll.Barrier {
					bytes = 0
				}
				if got, want := r.Price(bytes), priceOf(t, f.kind, f.name, at, bytes, channelCosts()); got != want {
					t.Errorf("%v %s, %d ranks, %d chunks: %v by one rank, %v by all", f.kind, f.name, size, chunks, got, want)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no algorithm has ranks that are alike")
	}
}

// The rank that stands for all (quotient.go) may send itself messages of more pairs of ranks than a pair has channels.
func TestMorePairsThanChannels(t *testing.T) {
	for _, f := range families {
		if f.kind != coll.AllToAll || f.name != sendrecv.Direct && f.name != sendrecv.Pairwise {
			continue
		}
		at := sendrecv.Place{Size: 300, Chunk: plan.Unit}
		got, want := pricerOf(t, f, at, channelCosts()).Price(2*plan.Unit), priceOf(t, f.kind, f.name, at, 2*plan.Unit, channelCosts())
		if got != want {
			t.Errorf("%s: %v by one rank, %v by all", f.name, got, want)
		}
	}
}

// Long collectives are played in part, and no price is below its lower bound.
func TestPricesOfLongCollectives(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{2, 3, 8, 13, 16} {
			at := sendrecv.Place{Size: size, Chunk: 64 * plan.Unit}
			if size == 8 {
				at.Hosts = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
			}
			r := pricerOf(t, f, at, channelCosts())
			for _, bytes := range []uint64{0, 1, 40, 1000, 64 * plan.Unit, 8*64*plan.Unit - 3, 9 * 64 * plan.Unit, 40*64*plan.Unit + 700} {
				if f.kind == coll.Barrier {
					bytes = 0
				}
				got, want, least := r.Price(bytes), priceOf(t, f.kind, f.name, at, bytes, channelCosts()), r.AtLeast(bytes)
				if diff := (got - want).Abs(); diff > want/20 {
					t.Errorf("%v %s, %d ranks, %d bytes: %v, played in full %v", f.kind, f.name, size, bytes, got, want)
				}
				if least > want {
					t.Errorf("%v %s, %d ranks, %d bytes: at least %v, played in full %v", f.kind, f.name, size, bytes, least, want)
				}
			}
		}
	}
}

// Counting whole chunks once and multiplying gives the same as counting every chunk of every rank.
func TestCountsOfManyChunks(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 5, 8} {
			at := sendrecv.Place{Size: size, Chunk: 40 * plan.Unit}
			plans := buildAll(t, f, at)
			for _, bytes := range []uint64{0, 64, 3*40*plan.Unit - 100, 3 * 40 * plan.Unit, 20*40*plan.Unit + 700} {
				var want Traffic
				for _, p := range plans {
					c := Count(p, plan.Lengths{Bytes: bytes})
					want.Sends, want.Recvs, want.Sent = max(want.Sends, c.Sends), max(want.Recvs, c.Recvs), max(want.Sent, c.Sent)
				}
				got := pricerOf(t, f, at, channelCosts()).Count(bytes)
				// Where pieces differ by a unit, a rank that is not asked may have the longer ones.
				if diff := int64(got.Sent) - int64(want.Sent); got.Sends > want.Sends || got.Recvs > want.Recvs || diff > 0 || -diff > int64(want.Sent/10)+int64(want.Sends*plan.Unit) {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v, want %+v", f.kind, f.name, size, bytes, got, want)
				}
			}
		}
	}
}

// Lengths up to the largest one have a number of chunks and a price.
func TestNoLengthIsTooLong(t *testing.T) {
	r := pricerOf(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: 3, Chunk: 3 * plan.Unit}, channelCosts())
	first := r.Plan()
	for bytes, want := range map[uint64]uint64{0: 1, 1: 1, 3 * plan.Unit: 1, 3*plan.Unit + 1: 2, math.MaxUint64: math.MaxUint64/(3*plan.Unit) + 1} {
		if got := first.Chunks(plan.Lengths{Bytes: bytes}); got != want {
			t.Errorf("%d bytes are %d chunks, expected %d", bytes, got, want)
		}
	}
	if got := r.Price(math.MaxUint64); got != Unpriced {
		t.Errorf("the largest number of bytes takes %v", got)
	}
	barrier := pricerOf(t, family{coll.Barrier, sendrecv.Dissemination}, sendrecv.Place{Size: 8, Chunk: plan.Unit}, channelCosts())
	if got := barrier.first.Chunks(plan.Lengths{Bytes: 1 << 62}); got != 1 {
		t.Errorf("a barrier has %d chunks for a number of bytes, expected 1", got)
	}
}

func TestWhatHasNoPrice(t *testing.T) {
	big := pricerOf(t, family{coll.Broadcast, sendrecv.ScatterAllGather}, sendrecv.Place{Size: 512, Chunk: 512 * plan.Unit}, channelCosts())
	if got := big.Price(100); got != Unpriced {
		t.Errorf("half a million messages have a price, %v", got)
	}
	if got := big.Price(1 << 40); got != Unpriced {
		t.Errorf("half a million long messages have a price, %v", got)
	}
	c := channelCosts()
	c.Capacity = 0
	if got := pricerOf(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: 2, Chunk: plan.Unit}, c).Price(100); got != Unpriced {
		t.Errorf("channels that hold nothing have a price, %v", got)
	}
	slow := channelCosts()
	slow.Links[0].Byte = 1e-6
	r := pricerOf(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: 2, Chunk: 128}, slow)
	if got := r.Price(1 << 62); got != Unpriced {
		t.Errorf("a length beyond all time takes %v", got)
	}
	if got := r.AtLeast(1 << 62); got != Unpriced {
		t.Errorf("a length beyond all time takes at least %v", got)
	}
}
