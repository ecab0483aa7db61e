package algo

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

var update = flag.Bool("update", false, "write testdata anew")

// Measurements support the choice between slot plans for small groups (docs/measured.md). A change of the cost model or
// of a plan must not alter the choice unnoticed.
func TestTablesOfSmallGroups(t *testing.T) {
	var b strings.Builder
	for size := 2; size <= 16; size++ {
		s := selector(t, size, "")
		fmt.Fprintf(&b, "%d ranks\n", size)
		for kind := range coll.KindCount {
			if kind.Collective() {
				fmt.Fprintf(&b, "  %v:", kind)
				for _, c := range s.Boundaries(kind) {
					fmt.Fprintf(&b, " %s %v %d to %d;", c.Algorithm, c.Slots, c.Chunk, c.UpTo)
				}
				fmt.Fprintln(&b)
			}
		}
	}
	compareWithFile(t, "testdata/tables.txt", "TablesOfSmallGroups", b.String())
}

// compareWithFile compares a text with a file, which the test writes with -update.
func compareWithFile(t *testing.T, file, test, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	wanted := strings.Split(string(want), "\n")
	for i, line := range strings.Split(got, "\n") {
		if i >= len(wanted) || line != wanted[i] {
			t.Fatalf("line %d of %s:\n got %s\nwant %s\n(go test ./algo -run %s -update writes it anew)", i+1, file, line,
				wanted[min(i, len(wanted)-1)], test)
		}
	}
}
