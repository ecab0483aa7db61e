package verify

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// shuffled runs the next steps of ranks, which it picks at random, until no rank can go on.
func shuffled(c SendRecvCall, capacity int, rng *rand.Rand) (*sendRecvRun, error) {
	r := newSendRecvRun(c, capacity, newTrees(len(c.Plans)))
	for stuck := 0; stuck < 20*len(r.ranks); stuck++ {
		a := r.ranks[rng.IntN(len(r.ranks))]
		if a.done {
			continue
		}
		moved, err := r.step(a)
		if err != nil {
			return r, err
		}
		if moved {
			stuck = 0
		}
	}
	return r, r.finish()
}

// The order in which ranks run does not change the checker's verdict, which the checker relies on. This test tries random
// orders.
func TestTheOrderOfRanksDoesNotMatter(t *testing.T) {
	const seed, size = 20260926, 13
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, f := range families {
		plans := buildAll(t, f, sendrecv.Place{Size: size, Root: 4, Chunk: 3 * plan.Unit})
		for _, capacity := range []int{1, 2, 5} {
			c := SendRecvCall{Plans: plans, Lengths: plan.Lengths{Bytes: 20 * plan.Unit}, InPlace: rng.IntN(2) == 0}
			straight := newSendRecvRun(c, capacity, newTrees(len(c.Plans)))
			require.NoError(t, straight.finish())
			other, err := shuffled(c, capacity, rng)
			if err != nil {
				t.Fatalf("%v %s, capacity %d: %v", f.kind, f.name, capacity, err)
			}
			for rank := range size {
				for block := range size {
					if plan.IsFlat(f.kind) && block > 0 || !plan.IsFlat(f.kind) && !plan.OutputBlocks(f.kind) && block != rank {
						continue
					}
					region := plan.Region{Space: plan.Output, Block: block}
					a, b := straight.memoryOf(straight.ranks[rank], region, 0), other.memoryOf(other.ranks[rank], region, 0)
					for i := range a.cells {
						if x, y := straight.trees.format(a.cells[i]), other.trees.format(b.cells[i]); x != y {
							t.Fatalf("%v %s, rank %d, unit %d of block %d: %s in one order, %s in another", f.kind, f.name, rank, i, block, x, y)
						}
					}
				}
			}
		}
	}
}

// The checker finds a deadlock at the same place in every order of ranks.
func TestADeadlockIsOneInEveryOrder(t *testing.T) {
	const seed = 20260927
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	plans := buildAll(t, family{coll.AllReduce, sendrecv.Rabenseifner}, sendrecv.Place{Size: 8, Chunk: 8 * plan.Unit})
	i := slices.IndexFunc(plans[5].Steps, func(s plan.Step) bool { return s.Op == plan.Recv })
	plans[5].Steps[i].Channel = 1
	c := SendRecvCall{Plans: plans, Lengths: plan.Lengths{Bytes: 20 * plan.Unit}}
	err := newSendRecvRun(c, 1, newTrees(len(c.Plans))).finish()
	rejected(t, err, "deadlock: ", "rank 5, chunk 0", "(recv) waits for a message in channel 1 from rank 1")
	for range 20 {
		if _, other := shuffled(c, 1, rng); other == nil || other.Error() != err.Error() {
			t.Errorf("%v\nin another order %v", err, other)
		}
	}
}
