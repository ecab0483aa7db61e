package cost

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

const (
	alpha = 10e-6 // of a message
	beta  = 1e-9  // per byte
	gamma = 2e-10 // per byte reduced
)

func flatCosts() Costs {
	return Costs{Links: []Link{{Latency: alpha, Byte: beta}}, Reduce: gamma, Capacity: 1}
}

func priceOf(t *testing.T, kind coll.Kind, name string, at sendrecv.Place, bytes uint64, c Costs) time.Duration {
	t.Helper()
	g, err := sendrecv.Plans(kind, name, at)
	require.NoError(t, err)
	g.Turned = false
	got, err := Price(g, plan.Lengths{Bytes: bytes}, c)
	require.NoError(t, err)
	return got
}

// For one chunk, and P a power of two, prices are those of Hockney 1994, Thakur, Rabenseifner, Gropp 2005 and Chan et
// al. 2007.
func TestPricesAreThoseOfTheFormulas(t *testing.T) {
	for _, size := range []int{2, 4, 8, 16, 64} {
		n, P, log := float64(size*1024), float64(size), float64(lg(size))
		for _, c := range []struct {
			kind coll.Kind
			name string
			want float64
		}{
			{coll.AllReduce, sendrecv.Ring, 2*(P-1)*alpha + 2*(P-1)/P*n*beta + (P-1)/P*n*gamma},
			{coll.AllReduce, sendrecv.RecursiveDoubling, log * (alpha + n*beta + n*gamma)},
			{coll.AllReduce, sendrecv.Rabenseifner, 2*log*alpha + 2*(P-1)/P*n*beta + (P-1)/P*n*gamma},
			{coll.AllReduce, sendrecv.Torus, func() float64 {
				A, B := square(size)
				return 2*float64(A+B-2)*alpha + 2*(P-1)/P*n*beta + (P-1)/P*n*gamma
			}()},
			{coll.AllGather, sendrecv.Ring, (P - 1) * (alpha + n*beta)},
			{coll.AllGather, sendrecv.Bruck, log*alpha + (P-1)*n*beta},
			{coll.ReduceScatter, sendrecv.Ring, (P - 1) * (alpha + n*beta + n*gamma)},
			{coll.ReduceScatter, sendrecv.RecursiveHalving, log*alpha + (P-1)*n*(beta+gamma)},
			{coll.AllToAll, sendrecv.Direct, alpha + (P-1)*n*beta},
			{coll.AllToAll, sendrecv.Bruck, log * (alpha + P/2*n*beta)},
			{coll.Broadcast, sendrecv.Chain, (P - 1) * (alpha + n*beta)},
			{coll.Gather, sendrecv.Direct, alpha + (P-1)*n*beta},
			{coll.Barrier, sendrecv.Dissemination, log * alpha},
		} {
			bytes := uint64(n)
			if c.kind == coll.Barrier {
				bytes = 0
			}
			got := priceOf(t, c.kind, c.name, sendrecv.Place{Size: size, Chunk: int(n)}, bytes, flatCosts())
			want := time.Duration(c.want*1e9 + 0.5)
			if diff := got - want; diff < -2 || diff > 2 {
				t.Errorf("%v %s, %d ranks: %v, want %v", c.kind, c.name, size, got, want)
			}
		}
	}
}

// The chunks of a chain follow one another: the first takes P-1 messages, each later one only its bytes. Where a message
// waits until the one before has been taken, the latency of each counts as well.
func TestPipeliningCounts(t *testing.T) {
	const size, chunks, s = 8, 50, 64 << 10
	c := flatCosts()
	c.Capacity = chunks
	got := priceOf(t, coll.Broadcast, sendrecv.Chain, sendrecv.Place{Size: size, Chunk: s}, chunks*s, c)
	want := time.Duration(((size-1)*alpha + (size-2+chunks)*s*beta) * 1e9)
	if diff := got - want; diff < -2 || diff > 2 {
		t.Errorf("%v, want %v", got, want)
	}
	c.Capacity = 1
	bounded := priceOf(t, coll.Broadcast, sendrecv.Chain, sendrecv.Place{Size: size, Chunk: s}, chunks*s, c)
	if whole := priceOf(t, coll.Broadcast, sendrecv.Chain, sendrecv.Place{Size: size, Chunk: chunks * s}, chunks*s, c); bounded <= got || bounded >= whole/2 {
		t.Errorf("%v with bounded channels, %v with room for all, %v in one chunk", bounded, got, whole)
	}
}

// Between hosts a byte costs 20 times as much as inside: a hierarchical all-reduce is the sum of its parts (Cho et al.
// 2019).
func TestClassesOfLinksCount(t *testing.T) {
	const hosts, width = 8, 8
	at := sendrecv.Place{Size: hosts * width, Chunk: 1 << 20}
	for h := range hosts {
		at.Hosts = append(at.Hosts, circle(h*width, width, hosts*width))
	}
	c := Costs{
		Links:    []Link{{Latency: 1e-6, Byte: 1e-10, Step: 1e-7}, {Latency: 2e-5, Byte: 2e-9, Step: 1e-6}},
		Class:    func(from, to int) int { return min(1, max(from/width, to/width)-min(from/width, to/width)) },
		Reduce:   gamma,
		Copy:     1e-10,
		Capacity: 4,
	}
	// Inside 2 (q-1) messages and 2 (q-1)/q n, between hosts 2 log2 H messages and 2 (H-1)/H n/q.
	const n, q, H = 1 << 20, 8., 8.
	want := 2*(q-1)*(1e-6+1e-7*2) + 2*(q-1)/q*n*1e-10 + 2*3*(2e-5+2*1e-6) + 2*(H-1)/H*n/q*2e-9 +
		((q-1)/q*n+(H-1)/H*n/q)*gamma
	got := priceOf(t, coll.AllReduce, sendrecv.Hierarchical, at, n, c)
	if diff := got.Seconds() - want; math.Abs(diff) > 0.01*want {
		t.Errorf("hierarchical %v, want %v", got, time.Duration(want*1e9))
	}
	if flat := priceOf(t, coll.AllReduce, sendrecv.Ring, at, n, c); flat < 3*got {
		t.Errorf("hierarchical %v, a ring through all hosts %v", got, flat)
	}
}

func TestEveryPlanHasAPrice(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 5, 8} {
			if got := priceOf(t, f.kind, f.name, sendrecv.Place{Size: size, Root: size - 1, Chunk: 4 * plan.Unit}, 30*plan.Unit, flatCosts()); got <= 0 && size > 1 {
				t.Errorf("%v %s, %d ranks: %v", f.kind, f.name, size, got)
			}
		}
	}
}

func TestPricesOfWhatCannotBe(t *testing.T) {
	plans := ringOf(t, 3)
	plans[1].Steps = plans[1].Steps[:3]
	_, err := Price(plan.Group{Size: 3, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}, plan.Lengths{Bytes: 100}, flatCosts())
	rejected(t, err, "rank 0 never gets beyond step", "deadlock")
	_, err = Price(plan.Group{Size: 3, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}, plan.Lengths{}, Costs{})
	rejected(t, err, "a price needs a class of links")
}

// Thousands of ranks are priced in seconds.
func TestThousandsOfRanksHaveAPrice(t *testing.T) {
	const hosts, width = 512, 8
	at := sendrecv.Place{Size: hosts * width, Chunk: 128 << 20}
	for h := range hosts {
		at.Hosts = append(at.Hosts, circle(h*width, width, hosts*width))
	}
	for _, name := range []string{sendrecv.Hierarchical, sendrecv.DoubleTree} {
		if got := priceOf(t, coll.AllReduce, name, at, 100<<20, flatCosts()); got <= 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
