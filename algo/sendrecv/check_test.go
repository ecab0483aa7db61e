package sendrecv

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/verify"
	"sagecomm/internal/coll"
)

// TestMain lets memory grow between garbage collections. Proofs keep little of the memory that they allocate, so the collector
// would otherwise run all the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	m.Run()
}

// buildAll makes the plans of all ranks.
func buildAll(t testing.TB, f family, at Place) []plan.SendRecvPlan {
	t.Helper()
	plans := make([]plan.SendRecvPlan, at.Size)
	for rank := range plans {
		at.Rank = rank
		plans[rank] = f.build(at)
		require.NoError(t, plans[rank].Validate())
	}
	return plans
}

// sizes returns the sizes for which every algorithm is proved. With -short they are those around the edges: powers of two,
// primes, products.
func sizes() []int {
	if testing.Short() {
		return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 33}
	}
	list := []int{48, 64}
	for size := 1; size <= 33; size++ {
		list = append(list, size)
	}
	return list
}

// lengths returns lengths around every edge of a plan's arithmetic. For a flat buffer these are 0 bytes, 1 byte, 1 unit,
// size-1, size and size+1 units, one of them short, and several chunks of which the last is short. For blocks they are
// nothing, a byte and one chunk, and in small groups the lengths of a flat buffer for each block; see also
// TestBlocksMayDifferInLength.
func lengths(kind coll.Kind, size, chunk int) []plan.Lengths {
	n := uint64(size)
	counts := []uint64{0, 1, plan.Unit, (n - 1) * plan.Unit, n*plan.Unit - 3, n * plan.Unit, (n + 1) * plan.Unit, uint64(2*chunk) + 5*plan.Unit/2}
	var list []plan.Lengths
	if plan.IsFlat(kind) {
		for _, bytes := range counts {
			list = append(list, plan.Lengths{Bytes: bytes})
		}
		return list
	}
	list = []plan.Lengths{{Bytes: 0}, {Bytes: 1}, {Bytes: 2*plan.Unit - 3}}
	if size <= 9 {
		for _, bytes := range counts {
			list = append(list, plan.Lengths{Bytes: bytes})
		}
	}
	return list
}

func TestEveryAlgorithmIsRight(t *testing.T) {
	for _, f := range families {
		t.Run(fmt.Sprintf("%v/%s", f.kind, f.name), func(t *testing.T) {
			t.Parallel()
			prove(t, f)
		})
	}
}

// prove runs an algorithm in groups of all sizes, with all roots and lengths.
func prove(t *testing.T, f family) {
	t.Helper()
	for _, size := range sizes() {
		chunk := plan.Unit * (size/2 + 1)
		if !plan.IsFlat(f.kind) {
			chunk = 2 * plan.Unit
		}
		for i, hosts := range arrangements(f, size) {
			for _, root := range roots(f.kind, size) {
				list, chunk := lengths(f.kind, size, chunk), chunk
				switch {
				case size > 8 && root != 0 && root != size-1:
					// Another root only changes the roles of ranks, which the lengths of one chunk test.
					if i > 0 && root != size/3 {
						continue
					}
					list, chunk = []plan.Lengths{{Bytes: uint64(size*plan.Unit - 3)}}, size*plan.Unit
					if !plan.IsFlat(f.kind) {
						list[0].Bytes = 1
					}
				case size > 12 && i > 0:
					list = list[len(list)-1:]
				}
				plans := buildAll(t, f, Place{Size: size, Root: root, Chunk: chunk, Hosts: hosts})
				for _, l := range list {
					err := error(nil)
					if len(list) > 1 {
						err = verify.CheckSendRecv(plans, l)
					} else {
						_, err = verify.CheckSendRecvCall(verify.SendRecvCall{Plans: plans, Lengths: l, InPlace: true}, 1)
					}
					if err != nil {
						t.Fatalf("hosts %v: %v", hosts, err)
					}
					if f.kind == coll.Barrier {
						break
					}
				}
			}
		}
	}
}

// arrangements returns hosts for hierarchical algorithms: all ranks on one, one rank on each, and some rectangles of
// consecutive ranks and of ranks dealt out in turn.
func arrangements(f family, size int) [][][]int {
	if !strings.HasPrefix(f.name, Hierarchical) {
		return [][][]int{nil}
	}
	list := [][][]int{nil}
	for width := 1; width < size; width++ {
		if size%width != 0 || size > 12 && width != 1 && width != 3 && width != 4 && width != size/2 {
			continue
		}
		hosts := make([][]int, size/width)
		for rank := range size {
			h := rank / width
			if width%2 == 0 {
				h = rank % len(hosts)
			}
			hosts[h] = append(hosts[h], rank)
		}
		list = append(list, hosts)
	}
	return list
}

func roots(kind coll.Kind, size int) []int {
	if !kind.Rooted() {
		return []int{0}
	}
	return circle(0, size, size)
}

// Blocks may have different lengths, and ranks then different numbers of chunks.
func TestBlocksMayDifferInLength(t *testing.T) {
	const seed, chunk = 20260925, 2 * plan.Unit
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, f := range families {
		if f.kind != coll.AllGather && f.kind != coll.ReduceScatter && f.kind != coll.AllToAll {
			continue
		}
		for _, size := range sizes() {
			hosts := arrangements(f, size)
			plans := buildAll(t, f, Place{Size: size, Chunk: chunk, Hosts: hosts[len(hosts)-1]})
			if plans[0].Even {
				break
			}
			n := size
			if f.kind == coll.AllToAll {
				n *= size
			}
			// A few units over all blocks first, then blocks of any length.
			var lists [][]uint64
			for _, total := range []int{0, 1, n - 1, n + 1} {
				blocks := make([]uint64, n)
				for range total {
					blocks[rng.IntN(n)] += plan.Unit
				}
				lists = append(lists, blocks)
			}
			if size > 12 {
				lists = lists[3:]
			}
			for range max(1, 12-size) {
				blocks := make([]uint64, n)
				longest := []int{0, plan.Unit, 5 * chunk}[rng.IntN(3)] / (size/10 + 1)
				for i := range blocks {
					blocks[i] = uint64(rng.IntN(longest + 1))
				}
				lists = append(lists, blocks)
			}
			for _, blocks := range lists {
				require.NoError(t, verify.CheckSendRecv(plans, plan.Lengths{Blocks: blocks}))
			}
		}
	}
}

// Plans with many more chunks than are in flight at once are right: no lag makes a rank wait for itself.
func TestLongPipelinesAreRight(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 33} {
			hosts := arrangements(f, size)
			plans := buildAll(t, f, Place{Size: size, Root: size / 2, Chunk: 2 * plan.Unit, Hosts: hosts[len(hosts)-1]})
			chunks := uint64(3*plans[0].Sets() + 2)
			require.NoError(t, verify.CheckSendRecv(plans, plan.Lengths{Bytes: chunks * 2 * plan.Unit}))
		}
	}
}

// Any reduce-scatter, all-reduce and all-gather make a hierarchical all-reduce.
func TestAnyAlgorithmsCompose(t *testing.T) {
	of := func(kind coll.Kind) (list []family) {
		for _, f := range families {
			if f.kind == kind {
				list = append(list, f)
			}
		}
		return list
	}
	hosts := [][]int{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {11, 10, 9}, {12, 13, 14}, {15, 16, 17}}
	for _, scatter := range of(coll.ReduceScatter) {
		for _, between := range of(coll.AllReduce) {
			for _, gather := range of(coll.AllGather) {
				plans := make([]plan.SendRecvPlan, 18)
				for rank := range plans {
					plans[rank] = ComposeAllReduce(Place{Rank: rank, Size: 18, Chunk: 8 * plan.Unit, Hosts: hosts}, scatter.build, between.build, gather.build)
				}
				for _, bytes := range []uint64{1, 90 * plan.Unit} {
					if err := verify.CheckSendRecv(plans, plan.Lengths{Bytes: bytes}); err != nil {
						t.Fatalf("%s, %s, %s: %v", scatter.name, between.name, gather.name, err)
					}
				}
			}
		}
	}
}
