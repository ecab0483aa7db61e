package sendrecv

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Largest returns the length of the longest message over all chunks.
func TestLargestBoundsEveryMessage(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 3, 6, 8, 13} {
			for _, chunk := range []int{plan.Unit, 5 * plan.Unit, 32 * plan.Unit} {
				for _, p := range buildAll(t, f, Place{Size: size, Root: size - 1, Chunk: chunk}) {
					most := uint64(0)
					for _, bytes := range []uint64{1, uint64(chunk) - 1, uint64(chunk), uint64(5*chunk)/2 + 1} {
						for k := range p.Chunks(plan.Lengths{Bytes: bytes}) {
							for _, s := range p.Steps {
								if s.Op == plan.Send {
									most = max(most, p.Bytes(s.From, k, plan.Lengths{Bytes: bytes}))
								}
							}
						}
					}
					if most != uint64(p.Largest()) {
						t.Errorf("%v %s, rank %d of %d, chunk %d: messages of up to %d bytes, but Largest is %d", f.kind, f.name, p.Rank, size, chunk, most, p.Largest())
					}
				}
			}
		}
	}
}

// telling picks ranks that stand for all: one sends the longest message, one does the most work. LongestChunk returns the
// longest chunk with equal pieces.
func TestSomeRanksTellTheLongestMessage(t *testing.T) {
	const place = 64 << 10
	for _, f := range families {
		for _, size := range sizes() {
			layouts := [][][]int{nil}
			if f.name == Hierarchical {
				layouts = append(layouts, rows(Place{Size: size}).hosts)
			}
			for _, hosts := range layouts {
				at := Place{Size: size, Chunk: plan.Unit, Hosts: hosts}
				what := fmt.Sprintf("%v %s, %d ranks, hosts %v", f.kind, f.name, size, hosts)
				chunk, err := LongestChunk(f.kind, f.name, at, place)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				for _, root := range []int{0, size / 2, size - 1} {
					at.Root, at.Chunk = root, chunk
					var all cost.Traffic
					largest, pieces := 0, 1
					for _, p := range buildAll(t, f, at) {
						largest, pieces = max(largest, p.Largest()), p.Pieces
						c := cost.Count(p, plan.Lengths{Bytes: uint64(chunk)})
						all.Sends, all.Recvs, all.Sent = max(all.Sends, c.Sends), max(all.Recvs, c.Recvs), max(all.Sent, c.Sent)
					}
					count := largest / (chunk / pieces) // pieces in the longest message
					if largest > place || chunk%(pieces*plan.Unit) != 0 || largest+count*plan.Unit <= place && largest > 0 {
						t.Errorf("%s, root %d: %d bytes in the longest message of chunks of %d", what, root, largest, chunk)
					}
					got := counted(t, f, at, uint64(chunk))
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
	if _, err := LongestChunk(coll.AllToAll, Bruck, Place{Size: 64}, 16*plan.Unit); err == nil {
		t.Error("32 blocks fit into 16 units")
	}
	if _, err := LongestChunk(coll.AllToAll, "none", Place{Size: 64}, plan.Unit); err == nil {
		t.Error("an unknown algorithm has chunks")
	}
}

// counted returns the largest counts of any rank, as a pricer finds them from the telling ranks.
func counted(t *testing.T, f family, at Place, bytes uint64) cost.Traffic {
	t.Helper()
	group, err := Plans(f.kind, f.name, at)
	require.NoError(t, err)
	return cost.NewPricer(group, cost.Costs{Links: []cost.Link{{Latency: 1e-6}}, Capacity: 1}).Count(bytes)
}
