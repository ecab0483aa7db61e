// What a choice asks for against what is played in full.

package message

import (
	"fmt"
	"math"
	"testing"

	"sagecomm/internal/coll"
)

// ringCosts are of the order of rings of shared memory.
func ringCosts() Costs {
	return Costs{Links: []Link{{Latency: 250e-9, Byte: 123e-12, Step: 300e-9}}, Reduce: 40e-12, Copy: 20e-12, Capacity: 4}
}

func pricerOf(t testing.TB, f family, at Place, c Costs) *Pricer {
	t.Helper()
	g, err := Plans(f.kind, f.name, at)
	if err != nil {
		t.Fatal(err)
	}
	return NewPricer(g, c)
}

// One rank's play is that of all, exactly, in every group in which ranks are said to be alike. An algorithm that is
// listed and is not alike is found out here.
func TestOneRankStandsForAll(t *testing.T) {
	seen := 0
	for _, f := range families {
		for size := 2; size <= 24; size++ {
			at := Place{Size: size, Chunk: size << lg(size) * Unit}
			r := pricerOf(t, f, at, ringCosts())
			if r.digits == nil {
				continue
			}
			seen++
			for _, chunks := range []uint64{0, 1, 5} {
				bytes := chunks * uint64(at.Chunk)
				if f.kind == coll.Barrier {
					bytes = 0
				}
				if got, want := r.Price(bytes), priceOf(t, f.kind, f.name, at, bytes, ringCosts()); got != want {
					t.Errorf("%v %s, %d ranks, %d chunks: %v by one rank, %v by all", f.kind, f.name, size, chunks, got, want)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no algorithm has ranks that are alike")
	}
	for kind, names := range symmetric {
		for name := range names {
			if _, err := Build(kind, name, Place{Size: 4, Chunk: Unit}); err != nil {
				t.Errorf("a symmetry of what there is not: %v", err)
			}
		}
	}
}

// More ways than channels have numbers: they share, and the price stays what it is.
func TestMoreWaysThanChannels(t *testing.T) {
	for _, f := range families {
		if f.kind != coll.AllToAll || f.name != Direct && f.name != Pairwise {
			continue
		}
		at := Place{Size: 300, Chunk: Unit}
		got, want := pricerOf(t, f, at, ringCosts()).Price(2*Unit), priceOf(t, f.kind, f.name, at, 2*Unit, ringCosts())
		if got != want {
			t.Errorf("%s: %v by one rank, %v by all", f.name, got, want)
		}
	}
}

// Long collectives are played in part, and nothing takes less than it must.
func TestPricesOfLongCollectives(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{2, 3, 8, 13, 16} {
			at := Place{Size: size, Chunk: 64 * Unit}
			if size == 8 {
				at.Hosts = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
			}
			r := pricerOf(t, f, at, ringCosts())
			for _, bytes := range []uint64{0, 1, 40, 1000, 64 * Unit, 8*64*Unit - 3, 9 * 64 * Unit, 40*64*Unit + 700} {
				if f.kind == coll.Barrier {
					bytes = 0
				}
				got, want, least := r.Price(bytes), priceOf(t, f.kind, f.name, at, bytes, ringCosts()), r.AtLeast(bytes)
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

// Multiplying what whole chunks take gives what counting every chunk of every rank gives.
func TestCountsOfManyChunks(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 5, 8} {
			at := Place{Size: size, Chunk: 40 * Unit}
			plans := buildAll(t, f, at)
			for _, bytes := range []uint64{0, 64, 3*40*Unit - 100, 3 * 40 * Unit, 20*40*Unit + 700} {
				var want Traffic
				for _, p := range plans {
					c := Count(p, Lengths{Bytes: bytes})
					want.Sends, want.Recvs, want.Sent = max(want.Sends, c.Sends), max(want.Recvs, c.Recvs), max(want.Sent, c.Sent)
				}
				got := pricerOf(t, f, at, ringCosts()).Count(bytes)
				// Of pieces that differ by a unit another rank than the one that is asked may have the longer ones.
				if diff := int64(got.Sent) - int64(want.Sent); got.Sends > want.Sends || got.Recvs > want.Recvs || diff > 0 || -diff > int64(want.Sent/10)+int64(want.Sends*Unit) {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v, want %+v", f.kind, f.name, size, bytes, got, want)
				}
			}
		}
	}
}

// The ranks that are looked at tell the longest message and the most work of all, and the chunk that follows is the
// longest one of equal pieces.
func TestSomeRanksTellTheLongestMessage(t *testing.T) {
	const place = 64 << 10
	for _, f := range families {
		for _, size := range sizes() {
			layouts := [][][]int{nil}
			if f.name == Hierarchical {
				layouts = append(layouts, rows(Place{Size: size}).hosts)
			}
			for _, hosts := range layouts {
				at := Place{Size: size, Chunk: Unit, Hosts: hosts}
				what := fmt.Sprintf("%v %s, %d ranks, hosts %v", f.kind, f.name, size, hosts)
				chunk, err := LongestChunk(f.kind, f.name, at, place)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				for _, root := range []int{0, size / 2, size - 1} {
					at.Root, at.Chunk = root, chunk
					var all Traffic
					largest, pieces := 0, 1
					for _, p := range buildAll(t, f, at) {
						largest, pieces = max(largest, p.Largest()), p.Pieces
						c := Count(p, Lengths{Bytes: uint64(chunk)})
						all.Sends, all.Recvs, all.Sent = max(all.Sends, c.Sends), max(all.Recvs, c.Recvs), max(all.Sent, c.Sent)
					}
					per := largest / (chunk / pieces)
					if largest > place || chunk%(pieces*Unit) != 0 || largest+per*Unit <= place && largest > 0 {
						t.Errorf("%s, root %d: %d bytes in the longest message of chunks of %d", what, root, largest, chunk)
					}
					got := pricerOf(t, f, at, ringCosts()).Count(uint64(chunk))
					if got.Sends != all.Sends || got.Recvs != all.Recvs || got.Sent != all.Sent {
						t.Errorf("%s, root %d: %+v, by all ranks %+v", what, root, got, all)
					}
					if !f.kind.Rooted() {
						break
					}
				}
			}
		}
	}
	if _, err := LongestChunk(coll.AllToAll, Bruck, Place{Size: 64}, 16*Unit); err == nil {
		t.Error("32 blocks fit into 16 units")
	}
	if _, err := LongestChunk(coll.AllToAll, "none", Place{Size: 64}, Unit); err == nil {
		t.Error("an unknown algorithm has chunks")
	}
}

// Lengths up to the last one have a number of chunks, and a price that takes no longer to say than others.
func TestNoLengthIsTooLong(t *testing.T) {
	r := pricerOf(t, family{coll.AllReduce, Ring, nil}, Place{Size: 3, Chunk: 3 * Unit}, ringCosts())
	plan := r.Plan()
	for bytes, want := range map[uint64]uint64{0: 1, 1: 1, 3 * Unit: 1, 3*Unit + 1: 2, math.MaxUint64: math.MaxUint64/(3*Unit) + 1} {
		if got := plan.Chunks(Lengths{Bytes: bytes}); got != want {
			t.Errorf("%d bytes are %d chunks, expected %d", bytes, got, want)
		}
	}
	if got := r.Price(math.MaxUint64); got != Unpriced {
		t.Errorf("more bytes than there are take %v", got)
	}
	barrier := pricerOf(t, family{coll.Barrier, Dissemination, nil}, Place{Size: 8, Chunk: Unit}, ringCosts())
	if got := barrier.Plan().Chunks(Lengths{Bytes: 1 << 62}); got != 1 {
		t.Errorf("a barrier has %d chunks where it is asked for bytes, expected 1", got)
	}
}

func TestWhatHasNoPrice(t *testing.T) {
	big := pricerOf(t, family{coll.Broadcast, ScatterAllGather, nil}, Place{Size: 512, Chunk: 512 * Unit}, ringCosts())
	if got := big.Price(100); got != Unpriced {
		t.Errorf("half a million messages have a price, %v", got)
	}
	if got := big.Price(1 << 40); got != Unpriced {
		t.Errorf("they have one for long messages, %v", got)
	}
	c := ringCosts()
	c.Capacity = 0
	if got := pricerOf(t, family{coll.AllReduce, Ring, nil}, Place{Size: 2, Chunk: Unit}, c).Price(100); got != Unpriced {
		t.Errorf("channels that hold nothing have a price, %v", got)
	}
	slow := ringCosts()
	slow.Links[0].Byte = 1e-6
	r := pricerOf(t, family{coll.AllReduce, Ring, nil}, Place{Size: 2, Chunk: 128}, slow)
	if got := r.Price(1 << 62); got != Unpriced {
		t.Errorf("a length beyond all time takes %v", got)
	}
	if got := r.AtLeast(1 << 62); got != Unpriced {
		t.Errorf("a length beyond all time takes at least %v", got)
	}
}
