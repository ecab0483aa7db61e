package verify

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// TestMain lets memory grow between garbage collections. Proofs keep little of the memory that they allocate, so the collector
// would otherwise run all the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	m.Run()
}

// family is one algorithm of one kind.
type family struct {
	kind coll.Kind
	name string
}

// families lists all algorithms of sendrecv plans.
var families = func() (all []family) {
	for kind := range coll.KindCount {
		for _, name := range sendrecv.Algorithms(kind) {
			all = append(all, family{kind, name})
		}
	}
	return all
}()

// buildAll makes the sendrecv plans of all ranks.
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

// build makes the slot plans of all ranks.
func build(t testing.TB, kind coll.Kind, algorithm string, size, root int, slots plan.Slots, chunk int) []plan.SlotPlan {
	t.Helper()
	plans := make([]plan.SlotPlan, size)
	for rank := range plans {
		p, err := shmplan.Build(kind, algorithm, shmplan.Place{Rank: rank, Size: size, Root: root, Slots: slots, Chunk: chunk})
		require.NoError(t, err)
		plans[rank] = p
	}
	return plans
}

// pieces returns a range of pieces of a flat buffer.
func pieces(space plan.Space, first, count int) []plan.Region {
	return []plan.Region{{Space: space, First: first, Count: count}}
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
