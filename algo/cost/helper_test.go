package cost

import (
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// family is one algorithm of one kind.
type family struct {
	kind coll.Kind
	name string
}

// families lists all algorithms of sendrecv plans.
var families = list(sendrecv.Algorithms)

// list returns the algorithms of all kinds.
func list(algorithms func(coll.Kind) []string) (all []family) {
	for kind := range coll.KindCount {
		for _, name := range algorithms(kind) {
			all = append(all, family{kind, name})
		}
	}
	return all
}

// buildAll makes the plans of all ranks.
func buildAll(t testing.TB, f family, at sendrecv.Place) []plan.SendRecvPlan {
	t.Helper()
	plans := make([]plan.SendRecvPlan, at.Size)
	for at.Rank = range at.Size {
		p, err := sendrecv.Build(f.kind, f.name, at)
		require.NoError(t, err)
		plans[at.Rank] = p
	}
	return plans
}

func ringOf(t *testing.T, size int) []plan.SendRecvPlan {
	return buildAll(t, family{coll.AllReduce, sendrecv.Ring}, sendrecv.Place{Size: size, Chunk: 4 * plan.Unit})
}

// circle returns count ranks from first on; after the last rank comes rank 0.
func circle(first, count, size int) []int {
	ranks := make([]int, count)
	for i := range ranks {
		ranks[i] = (first + i) % size
	}
	return ranks
}

// lg returns the logarithm to base 2, rounded up.
func lg(n int) int { return bits.Len(uint(n - 1)) }

// square returns the factors A >= B of P that are closest to each other.
func square(P int) (A, B int) {
	for B = int(math.Sqrt(float64(P))); P%B != 0; B-- {
	}
	return P / B, B
}

// rejected fails the test unless err holds every text.
func rejected(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Error("accepted")
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v\nlacks %q", err, text)
		}
	}
}
