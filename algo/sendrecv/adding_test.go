package sendrecv

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// example is the line that docs/adding-an-algorithm.md adds to families.
var example = []family{
	{coll.Broadcast, Flat, FlatBroadcast},
}

// exampleFormulas is the line that docs/adding-an-algorithm.md adds to formulas.
var exampleFormulas = map[string]func(P int, n uint64) formula{
	// Chan et al. 2007: the root sends P-1 messages of n.
	"broadcast/flat": func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
}

func TestTheWorkedExampleIsRight(t *testing.T) {
	f := example[0]
	prove(t, f)
	compare(t, f, exampleFormulas["broadcast/flat"])
	// P-1 messages leave one after the other; the last one arrives a latency after its bytes have left.
	const size, n, alpha, beta = 5, 1000, 10e-6, 1e-9
	got, err := cost.Price(plan.Group{Size: size, Build: func(rank int) plan.SendRecvPlan { return f.build(Place{Rank: rank, Size: size, Chunk: 1024}) }}, plan.Lengths{Bytes: n}, cost.Costs{Links: []cost.Link{{Latency: alpha, Byte: beta}}, Capacity: 1})
	require.NoError(t, err)
	want := time.Duration((alpha + (size-1)*n*beta) * 1e9)
	if diff := (got - want).Abs(); diff > 2 {
		t.Errorf("%v, want %v", got, want)
	}
}

// The code that docs/adding-an-algorithm.md shows is exactly the code that the tests build and prove.
func TestTheWorkedExampleIsTheDocuments(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	var blocks []string
	_, rest, more := strings.Cut(read("../../docs/adding-an-algorithm.md"), "```go\n")
	for more {
		block, after, closed := strings.Cut(rest, "```\n")
		if !closed {
			t.Fatal("a block of code has no end")
		}
		blocks = append(blocks, block)
		_, rest, more = strings.Cut(after, "```go\n")
	}
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of code, expected the builder, its line and its formula", len(blocks))
	}
	if blocks[0] != read("broadcast_flat_test.go") {
		t.Error("the builder in the document is not that of broadcast_flat_test.go")
	}
	source := read("adding_test.go")
	for _, block := range blocks[1:] {
		if !strings.Contains(source, block) {
			t.Errorf("adding_test.go does not hold what the document shows:\n%s", block)
		}
	}
}
