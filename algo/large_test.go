package algo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// mostOfATable bounds the work of each table of the groups below: half a second of a server core.
const mostOfATable = 2_500_000

// Groups of hundreds of ranks over hosts have prices for short-message plans as well, at the cost of few ranks. A change
// of the model or of a plan must not alter these choices unnoticed.
func TestTablesOfLargeGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long; TestTablesOfSmallGroups is quick")
	}
	var b strings.Builder
	for _, count := range []int{8, 20, 63, 128, 512} {
		s := Shape{Size: 8 * count, Apart: true, Hosts: hosts(count, 8)}
		fmt.Fprintf(&b, "%d ranks on %d hosts\n", s.Size, count)
		for kind := range coll.KindCount {
			if !kind.Collective() {
				continue
			}
			p := newPredictor(s, DefaultParams())
			fmt.Fprintf(&b, "  %v:", kind)
			for _, c := range p.table(kind) {
				fmt.Fprintf(&b, " %s %d to %d;", c.Algorithm, c.Chunk, c.UpTo)
			}
			fmt.Fprintln(&b)
			work := 0
			for _, c := range p.known {
				work += c.pricer.Work()
			}
			if work > mostOfATable {
				t.Errorf("%d ranks, %v: the table took the work of %d steps, expected at most %d", s.Size, kind, work, mostOfATable)
			}
		}
	}
	compareWithFile(t, "testdata/large_tables.txt", "TablesOfLargeGroups", b.String())
}

func BenchmarkTableOfHosts(b *testing.B) {
	for _, count := range []int{20, 128, 512} {
		for kind := range coll.KindCount {
			if kind.Collective() {
				b.Run(fmt.Sprintf("%d/%v", 8*count, kind), func(b *testing.B) {
					for b.Loop() {
						newPredictor(Shape{Size: 8 * count, Apart: true, Hosts: hosts(count, 8)}, DefaultParams()).table(kind)
					}
				})
			}
		}
	}
}

// unlike returns hosts of q ranks each but the last, which has one rank less. No rank of a ring over them is like
// another one.
func unlike(count, q int) [][]int {
	list := hosts(count, q)
	list[count-1] = list[count-1][:q-1]
	return list
}

// Where a ring over hosts that differ is too long for a price, short blocks take a plan of few steps and long ones the
// ring. Trees have prices whatever the hosts are.
func TestWithoutAnyPriceThereIsAShortPlan(t *testing.T) {
	s := selectorOf(t, Shape{Size: 511, Apart: true, Hosts: unlike(64, 8)}, DefaultParams(), "")
	for _, c := range []struct {
		kind  coll.Kind
		bytes uint64
		want  string
	}{
		{coll.AllGather, 256, sendrecv.Bruck}, {coll.AllGather, 1 << 20, sendrecv.Ring},
		{coll.ReduceScatter, 256, sendrecv.Bruck}, {coll.ReduceScatter, 1 << 20, sendrecv.Ring},
		{coll.AllToAll, 256, sendrecv.Pairwise}, {coll.Broadcast, 256, sendrecv.Binomial},
		{coll.AllReduce, 256, sendrecv.RecursiveDoubling},
	} {
		if got := s.Choose(c.kind, c.bytes); got.Algorithm != c.want {
			t.Errorf("%v of %d bytes: %s is chosen, expected %s", c.kind, c.bytes, got.Algorithm, c.want)
		}
	}
	for _, c := range s.Explain(coll.AllToAll, 1000) {
		if !c.AtLeast || c.Predicted <= 0 || c.Chosen != (c.Algorithm == sendrecv.Pairwise) {
			t.Errorf("%+v: expected a lower bound, and pairwise as the choice", c)
		}
		if c.Algorithm == sendrecv.Direct && c.Why != "it has too many messages for a prediction; a rule can set it" {
			t.Errorf("%+v: expected the reason that there are too many messages", c)
		}
	}
}

// A table whose work is used up goes on with plans of few steps for short messages, and is the same each time.
func TestWorkOfATableIsBounded(t *testing.T) {
	shape := Shape{Size: 160, Apart: true, Hosts: hosts(20, 8)}
	bounds := []int{0, 10_000, 100_000}
	if testing.Short() {
		bounds = bounds[:2] // more work takes longer
	}
	for _, most := range bounds {
		var tables [2]string
		for i := range tables {
			p, left := newPredictor(shape, DefaultParams()), most
			p.left = &left
			for kind := range coll.KindCount {
				if kind.Collective() {
					table := p.table(kind)
					tables[i] += fmt.Sprintln(kind, table)
					if name := table[0].Algorithm; most == 0 && kind != coll.AllToAll && !sendrecv.Logarithmic(kind, name) {
						t.Errorf("%v: %s without any price", kind, name)
					}
				}
			}
			if left < 0 {
				t.Errorf("%d of %d is left", left, most)
			}
		}
		if tables[0] != tables[1] {
			t.Errorf("%s\nand then\n%s", tables[0], tables[1])
		}
	}
}

// Chunks that a rule sets may have pieces that differ in length, so that no rank is quite like another one. All ranks are
// played then.
func TestChunksOfUnequalPiecesOfLargeGroups(t *testing.T) {
	const chunk = 1 << 20 // 160 ranks have no equal pieces of it
	s := selectorOf(t, Shape{Size: 160, Apart: true, Hosts: hosts(20, 8)}, DefaultParams(), "all_reduce:0-inf:ring@chunk=1M")
	var chosen, predicted Candidate
	for _, c := range s.Explain(coll.AllReduce, chunk) {
		if c.Chosen {
			chosen = c
		} else if c.Algorithm == sendrecv.Ring {
			predicted = c
		}
	}
	require.Equal(t, chunk, chosen.Chunk)
	require.Zero(t, predicted.Chunk%(160*plan.Unit))
	if a, b := chosen.Predicted, predicted.Predicted; chosen.AtLeast || a < b*95/100 || a > b*105/100 {
		t.Errorf("%v in a chunk of unequal pieces (at least: %t), %v in a chunk of equal ones", a, chosen.AtLeast, b)
	}
}
