package verify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// Every kind of wait is needed: without it, some access is not ordered. The checker finds that under every schedule, even if
// the values happen to be right.
func TestEveryWaitIsNeeded(t *testing.T) {
	without := func(a plan.Action) func(*slotMachine) {
		return func(m *slotMachine) {
			for _, steps := range m.steps {
				for i := range steps {
					if steps[i].Action == a {
						steps[i].Waits = nil
					}
				}
			}
		}
	}
	const bytes = 256*6 + 9
	for _, c := range []struct {
		kind      coll.Kind
		algorithm string
		action    plan.Action
		want      string
	}{
		// A two-shot alone orders its publishes by its other waits, since it collects from its own slots. It waits for
		// consumed because of other collectives on the same slots; see below.
		{coll.AllReduce, shmplan.OneShot, plan.ReduceSlots, "(reduce): reads bytes"},
		{coll.AllReduce, shmplan.TwoShot, plan.ReduceSlots, "(reduce): reads bytes"},
		{coll.AllReduce, shmplan.TwoShot, plan.Collect, "(collect): reads bytes"},
		{coll.Broadcast, shmplan.OneShot, plan.Read, "(read): reads bytes"},
		{coll.Broadcast, shmplan.OneShot, plan.Publish, "(publish): writes bytes"},
		{coll.Reduce, shmplan.OneShot, plan.Publish, "(publish): writes bytes"},
		{coll.Reduce, shmplan.TwoShot, plan.Collect, "(collect): reads bytes"},
		{coll.Barrier, shmplan.OneShot, plan.Await, "may leave before"},
		{coll.ReduceScatter, shmplan.OneShot, plan.ReduceSlots, "(reduce): reads bytes"},
		{coll.AllToAll, shmplan.OneShot, plan.Read, "(read): reads bytes"},
		{coll.Gather, shmplan.OneShot, plan.Read, "(read): reads bytes"},
		{coll.Gather, shmplan.OneShot, plan.Publish, "(publish): writes bytes"},
		{coll.Scatter, shmplan.OneShot, plan.Read, "(read): reads bytes"},
		{coll.Scatter, shmplan.OneShot, plan.Publish, "(publish): writes bytes"},
	} {
		plans := build(t, c.kind, c.algorithm, 4, 0, plan.LargeSlots, 256)
		for _, s := range schedules(4) {
			m, err := newSlotMachine([2]int{4, 4}, SlotCall{Plans: plans, Lengths: plan.Lengths{Bytes: bytes}})
			require.NoError(t, err)
			without(c.action)(m)
			err = m.check([]schedule{s})
			// A race may also show as another ticket's data, as no data at all, or, where the reader came first, on the
			// writer's side.
			if err == nil {
				t.Errorf("%v %s without the waits of %v, %s: accepted", c.kind, c.algorithm, c.action, s.name)
			} else if s.name == "round-robin" && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v %s without the waits of %v: %v\nlacks %q", c.kind, c.algorithm, c.action, err, c.want)
			}
		}
	}
}

// A two-shot that follows a broadcast waits until the slots of the broadcast have been read.
func TestTwoShotWaitsForTheCollectiveBefore(t *testing.T) {
	calls := []SlotCall{
		{Plans: build(t, coll.Broadcast, shmplan.OneShot, 3, 1, plan.LargeSlots, 256), Lengths: plan.Lengths{Bytes: 256 * 4}},
		{Plans: build(t, coll.AllReduce, shmplan.TwoShot, 3, 0, plan.LargeSlots, 256), Lengths: plan.Lengths{Bytes: 256}},
	}
	for _, s := range schedules(3) {
		m, err := newSlotMachine([2]int{4, 4}, calls...)
		require.NoError(t, err)
		require.NoError(t, m.check([]schedule{s}))
		for _, steps := range m.steps {
			for i := range steps {
				if steps[i].call == 1 && steps[i].Action == plan.Publish {
					steps[i].Waits = nil
				}
			}
		}
		if err := m.check([]schedule{s}); err == nil {
			t.Errorf("without the waits for consumed, %s: accepted", s.name)
		}
	}
}

// In place, an input that is read after the result has overwritten it shows in the values.
func TestInPlaceOrderMatters(t *testing.T) {
	plans := build(t, coll.AllReduce, shmplan.OneShot, 2, 0, plan.LargeSlots, 64)
	reject(t, plans, 192, 4, true, func(m *slotMachine) {
		for i, in := range m.steps[0] {
			if in.Action == plan.Publish && in.Chunk == 2 {
				m.steps[0][i].Moves[0].From[0].Off = 0 // chunk 0, reduced one position ago
			}
		}
	}, "in place", "bytes [128, 192) of the output hold {0@0 + 1@0 + 1@128}, expected {0@128 + 1@128}")
}

func TestWrongBytesAreSeen(t *testing.T) {
	plans := build(t, coll.AllReduce, shmplan.OneShot, 2, 0, plan.LargeSlots, 64)
	publish := func(chunk int64, change func(*plan.SlotStep)) func(*slotMachine) {
		return func(m *slotMachine) {
			for i := range m.steps[0] {
				if s := &m.steps[0][i].SlotStep; s.Action == plan.Publish && s.Chunk == chunk {
					change(s)
				}
			}
		}
	}
	reject(t, plans, 192, 4, false, publish(2, func(s *plan.SlotStep) { s.Moves[0].From[0].Off = 0 }),
		"bytes [128, 192) of the output hold {0@0 + 1@128}, expected {0@128 + 1@128}")
	reject(t, plans, 64*6, 4, false, publish(4, func(s *plan.SlotStep) { s.Moves = nil }),
		"chunk 4, stage 1 (reduce): reads bytes [0, 64) of rank 0's slot 0, which hold ticket 0 instead of 4")
}

// The checker knows orders that follow from others. If every rank reads from every other, the reductions of later chunks imply
// the order that the wait of publish enforces, so that wait is not missed. In a broadcast nothing implies that order.
func TestAWaitThatFollowsFromOthersIsNotMissed(t *testing.T) {
	m, err := newSlotMachine([2]int{4, 4}, SlotCall{Plans: build(t, coll.AllReduce, shmplan.OneShot, 3, 0, plan.LargeSlots, 64), Lengths: plan.Lengths{Bytes: 640}})
	require.NoError(t, err)
	for _, steps := range m.steps {
		for i := range steps {
			if steps[i].Action == plan.Publish {
				steps[i].Waits = nil
			}
		}
	}
	if err := m.check(schedules(3)); err != nil {
		t.Error(err)
	}
}
