package verify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// reject runs plans on a machine, which spoil may change first. It fails the test unless every schedule gives an error that
// contains every text: the verdict must not depend on the order in which ranks run.
func reject(t *testing.T, plans []plan.SlotPlan, bytes uint64, slots int, inPlace bool, spoil func(*slotMachine), want ...string) {
	t.Helper()
	for _, s := range schedules(len(plans)) {
		m, err := newSlotMachine([2]int{slots, slots}, SlotCall{Plans: plans, Lengths: plan.Lengths{Bytes: bytes}, InPlace: inPlace})
		require.NoError(t, err)
		if spoil != nil {
			spoil(m)
		}
		err = m.check([]schedule{s})
		if err == nil {
			t.Errorf("%s: accepted", s.name)
			continue
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v\nlacks %q", s.name, err, text)
			}
		}
	}
}

// with applies a change to the stages of all ranks, or of one.
func with(plans []plan.SlotPlan, rank int, change func([]plan.Stage) []plan.Stage) []plan.SlotPlan {
	for i := range plans {
		if rank < 0 || i == rank {
			plans[i].Stages = change(plans[i].Stages)
		}
	}
	return plans
}

func TestBrokenSlotPlansAreRejected(t *testing.T) {
	const all = -1
	oneShot := func() []plan.SlotPlan { return build(t, coll.AllReduce, shmplan.OneShot, 4, 0, plan.LargeSlots, 256) }
	twoShot := func() []plan.SlotPlan { return build(t, coll.AllReduce, shmplan.TwoShot, 4, 0, plan.LargeSlots, 256) }
	drop := func(i int) func([]plan.Stage) []plan.Stage {
		return func(s []plan.Stage) []plan.Stage { return append(append([]plan.Stage{}, s[:i]...), s[i+1:]...) }
	}
	edit := func(i int, f func(*plan.Stage)) func([]plan.Stage) []plan.Stage {
		return func(s []plan.Stage) []plan.Stage { s = append([]plan.Stage{}, s...); f(&s[i]); return s }
	}
	// There are fewer chunks than slots: other tests cover the reuse of slots.
	const bytes = 700
	for _, c := range []struct {
		name  string
		plans []plan.SlotPlan
		slots int
		bytes uint64
		want  []string
	}{
		{"a stage is missing: collect", with(twoShot(), all, drop(2)), 4, bytes,
			[]string{"rank 0, at the end of the call", "bytes [64, 256) of the output were never written"}},
		{"a stage is missing: reduce", with(twoShot(), all, drop(1)), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (collect) waits for rank 1's reduced of chunk 0"}},
		{"a stage is missing: publish on one rank", with(oneShot(), 2, drop(0)), 4, bytes,
			[]string{"rank 2, chunk 0, stage 0 (reduce): reads bytes [0, 256) of rank 2's slot 0, which nobody has written"}},
		{"a stage is missing: publish on the rank that does not read", with(build(t, coll.Reduce, shmplan.OneShot, 4, 0, plan.LargeSlots, 256), 2,
			func([]plan.Stage) []plan.Stage { return []plan.Stage{{Action: plan.Await}} }), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (reduce) waits for rank 2's filled of chunk 0"}},
		{"a stage is missing: reduce on one rank", with(oneShot(), 3, drop(1)), 4, bytes,
			[]string{"rank 3, at the end of the call", "bytes [0, 700) of the output were never written"}},
		{"wrong part: a share is taken for the whole", with(oneShot(), all, edit(1, func(s *plan.Stage) { s.Part = plan.Share })), 4, bytes,
			[]string{"rank 0, at the end of the call: bytes [64, 256) of the output were never written"}},
		{"wrong part: the whole goes to the slots", with(twoShot(), 1, edit(1, func(s *plan.Stage) { s.Part = plan.Whole })), 4, bytes,
			[]string{"rank 1, chunk 0, stage 1 (reduce): reads bytes [", "without waiting for rank ", "chunk 0, stage 1 (reduce), which writes them"}},
		{"wrong source: own contribution left out", with(oneShot(), 2, edit(1, func(s *plan.Stage) { s.From = plan.Others })), 4, bytes,
			[]string{"rank 2, at the end", "hold {0@0 + 1@0 + 3@0}, expected {0@0 + 1@0 + 2@0 + 3@0}"}},
		{"wrong source: own share read before it is reduced", with(twoShot(), all, edit(2, func(s *plan.Stage) { s.From = plan.Nobody })), 4, bytes,
			[]string{"rank 0, at the end", "bytes [64, 256) of the output were never written"}},
		{"wrong target: the result goes back to nobody", with(twoShot(), 3, edit(1, func(s *plan.Stage) { s.Back = plan.Nobody })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 2 (collect) waits for rank 3's reduced of chunk 0"}},
		{"wrong target: the result goes back to the root only", with(twoShot(), 3, edit(1, func(s *plan.Stage) { s.Back = plan.FromRoot })), 4, bytes,
			[]string{"rank 1, at the end of the call", "hold {1@192}, expected {0@192 + 1@192 + 2@192 + 3@192}"}},
		{"wrong target: the result stays out of the output", with(twoShot(), 1, edit(1, func(s *plan.Stage) { s.ToOutput = false })), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [64, 128) of the output were never written"}},
		{"wrong lag: collect before reduce", with(twoShot(), all, edit(2, func(s *plan.Stage) { s.Lag = 0 })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 2 (collect) waits for rank 1's reduced of chunk 0"}},
		{"wrong lag: reduce before publish", with(oneShot(), all, edit(0, func(s *plan.Stage) { s.Lag = 2 })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (reduce) waits for rank 1's filled of chunk 0"}},
		{"wrong lag: as large as the slots are many", with(oneShot(), all, edit(1, func(s *plan.Stage) { s.Lag = 4 })), 4, 256 * 6,
			[]string{"deadlock: rank 0, chunk 4, stage 0 (publish) waits for rank 1's consumed of chunk 0"}},
		{"too few slots", twoShot(), 2, bytes,
			[]string{"deadlock: rank 0, chunk 2, stage 0 (publish) waits for rank 1's consumed of chunk 0"}},
		{"wrong order: reduce before publish of the same chunk", with(oneShot(), all, func(s []plan.Stage) []plan.Stage {
			return []plan.Stage{{Action: plan.ReduceSlots, From: plan.Everybody, ToOutput: true}, s[0]}
		}), 4, bytes, []string{"deadlock: rank 0, chunk 0, stage 0 (reduce)"}},
		{"alone: reduce before publish", with(build(t, coll.AllReduce, shmplan.OneShot, 1, 0, plan.LargeSlots, 256), all, func(s []plan.Stage) []plan.Stage {
			return []plan.Stage{{Action: plan.ReduceSlots, From: plan.Everybody, ToOutput: true}, s[0]}
		}), 4, bytes, []string{"rank 0, chunk 0, stage 0 (reduce): reads bytes [0, 256) of rank 0's slot 0, which nobody has written"}},
		{"broadcast: the root reads, too", with(build(t, coll.Broadcast, shmplan.OneShot, 3, 1, plan.LargeSlots, 256), 2, edit(0, func(s *plan.Stage) { s.From = plan.Everybody })), 4, bytes,
			[]string{"deadlock: rank 2, chunk 0, stage 0 (read) waits for rank 0's filled of chunk 0"}},
		{"all_gather: own block left out", with(build(t, coll.AllGather, shmplan.OneShot, 3, 0, plan.LargeSlots, 256), 1, edit(1, func(s *plan.Stage) { s.From = plan.FromRoot })), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [700, 1400) of the output were never written"}},
		{"reduce: another rank than the root has the result", with(build(t, coll.Reduce, shmplan.TwoShot, 3, 0, plan.LargeSlots, 256), 2, edit(1, func(s *plan.Stage) { s.ToOutput = true })), 4, bytes,
			[]string{"rank 2, at the end of the call: a rank that is not the root wrote its output"}},
		{"reduce_scatter: a share is taken for the block", with(build(t, coll.ReduceScatter, shmplan.OneShot, 3, 0, plan.LargeSlots, 256), 1, edit(1, func(s *plan.Stage) { s.From = plan.Others })), 4, bytes,
			[]string{"rank 1, at the end of the call", "hold {0@700 + 2@700}, expected {0@700 + 1@700 + 2@700}"}},
		{"all_to_all: heads are not read", with(build(t, coll.AllToAll, shmplan.OneShot, 3, 0, plan.LargeSlots, 256), 1, edit(1, func(s *plan.Stage) { s.From = plan.Nobody })), 4, bytes,
			[]string{"rank 1, at the end of the call", "were never written"}},
		{"gather: the root's own block is left out", with(build(t, coll.Gather, shmplan.OneShot, 3, 1, plan.LargeSlots, 256), 1, edit(0, func(s *plan.Stage) { s.From = plan.Everybody })), 4, bytes,
			[]string{"rank 1, chunk 0, stage 0 (read): reads bytes [0, 256) of rank 1's slot 0, which nobody has written"}},
		{"scatter: the root keeps nothing", with(build(t, coll.Scatter, shmplan.OneShot, 3, 1, plan.LargeSlots, 256), 1, drop(1)), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [0, 700) of the output were never written"}},
		{"barrier: nobody waits", with(build(t, coll.Barrier, shmplan.OneShot, 3, 0, plan.SmallSlots, 64), all, drop(1)), 4, 0,
			[]string{"rank 0, at the end of the call: it may leave before rank 1 has entered"}},
		{"barrier: one rank does not wait", with(build(t, coll.Barrier, shmplan.OneShot, 3, 0, plan.SmallSlots, 64), 2, drop(1)), 4, 0,
			[]string{"rank 2, at the end of the call: it may leave before rank 0 has entered"}},
	} {
		t.Run(c.name, func(t *testing.T) { reject(t, c.plans, c.bytes, c.slots, false, nil, c.want...) })
	}
}
