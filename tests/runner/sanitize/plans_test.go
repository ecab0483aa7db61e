package sanitize

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// What threads_test.c and plans.h count on: sizes of groups, the longest chunk, and the longest message that a channel takes.
var planSizes = []int{2, 3, 4, 8}

const (
	longestChunk   = 8 << 10
	longestMessage = 64 << 10
)

var stepNames = map[plan.Op]string{plan.Send: "SCR_STEP_SEND", plan.Recv: "SCR_STEP_RECV",
	plan.RecvReduce: "SCR_STEP_RECV_REDUCE", plan.Reduce: "SCR_STEP_REDUCE", plan.Copy: "SCR_STEP_COPY"}

var spaceNames = map[plan.Space]string{plan.Input: "SCR_INPUT", plan.Output: "SCR_OUTPUT", plan.Scratch: "SCR_SCRATCH"}

// tables are the plans of all algorithms as C: see tests/runner/plans.h.
type tables struct {
	steps, regions, plans strings.Builder
	nSteps, nRegions      int
	nPlans                int
}

func writePlans(t *testing.T) []byte {
	t.Helper()
	var c tables
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		for number, name := range sendrecv.Algorithms(kind) {
			for _, size := range planSizes {
				roots := []int{0}
				if kind.Rooted() {
					roots = append(roots, size-1)
				}
				for _, root := range roots {
					for rank := range size {
						at := sendrecv.Place{Rank: rank, Size: size, Root: root, Chunk: longestChunk, Hosts: hosts(size)}
						p, err := sendrecv.Build(kind, name, at)
						require.NoError(t, err)
						if n := p.Largest(); n > longestMessage {
							t.Fatalf("%v %s, %d ranks: messages of %d bytes", kind, name, size, n)
						}
						c.plan(p, number)
					}
				}
			}
		}
	}
	return fmt.Appendf(nil, "#include \"plans.h\"\n\nstatic const scr_region regions[] = {\n%s};\n\nstatic const scr_step steps[] = {\n%s};\n\n"+
		"const plan plans[] = {\n%s};\n\nconst unsigned n_plans = %d;\n", &c.regions, &c.steps, &c.plans, c.nPlans)
}

// hosts are two where that is possible, which take turns with ranks. Other groups are on one.
func hosts(size int) [][]int {
	if size%2 != 0 {
		return nil
	}
	list := make([][]int, 2)
	for rank := range size {
		list[rank%2] = append(list[rank%2], rank)
	}
	return list
}

func (c *tables) plan(p plan.SendRecvPlan, number int) {
	fmt.Fprintf(&c.plans, "{%d, %d, %d, %d, %d, %q, %t, %d, %d, %d, %d, ", p.Kind, number, p.Size, p.Rank, p.Root, p.Algorithm,
		p.Even, p.Pieces, p.Cells, p.Sets(), len(p.Steps))
	firstStep, firstRegion, at := c.nSteps, c.nRegions, 0
	for _, s := range p.Steps {
		first := 0
		if s.MessageFirst {
			first = 1
		}
		fmt.Fprintf(&c.steps, "{%s, %d, %d, %d, %d, %d, %d, %d, %d},\n", stepNames[s.Op], s.Channel, first, s.Lag, s.Peer,
			at, len(s.From), at+len(s.From), len(s.To))
		for _, r := range slices.Concat(s.From, s.To) {
			fmt.Fprintf(&c.regions, "{%s, %d, %d, %d, %d},\n", spaceNames[r.Space], r.Cell, r.Block, r.First, r.Count)
			at++
		}
	}
	c.nSteps += len(p.Steps)
	c.nRegions += at
	c.nPlans++
	fmt.Fprintf(&c.plans, "%d, steps + %d, regions + %d},\n", at, firstStep, firstRegion)
}
