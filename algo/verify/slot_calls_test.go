package verify

import (
	"strings"
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

func TestSlotPlansThatDoNotGoTogether(t *testing.T) {
	plans := func() []plan.SlotPlan { return build(t, coll.AllReduce, shmplan.OneShot, 3, 0, plan.LargeSlots, 64) }
	other := plans()
	other[1].Chunk = 128
	swapped := plans()
	swapped[0], swapped[1] = swapped[1], swapped[0]
	invalid := plans()
	invalid[2].Chunk = 65
	for _, c := range []struct {
		calls []SlotCall
		want  string
	}{
		{nil, "nothing to check"},
		{[]SlotCall{{Plans: other}}, "the plan of rank 1 (all_reduce one_shot, size 3, root 0, large slots, chunk 128) does not go with"},
		{[]SlotCall{{Plans: swapped}}, "the plan in place 0 is that of rank 1"},
		{[]SlotCall{{Plans: invalid}}, "chunk of 65 bytes"},
		{[]SlotCall{{Plans: plans()}, {Plans: plans()[:2]}}, "call 1 has 2 plans, the first one 3"},
	} {
		if err := CheckSlotCalls(c.calls...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := CheckSlots(other, plan.Lengths{Bytes: 64}); err == nil {
		t.Error("Check accepts plans that do not go together")
	}
	p2p := plans()
	for i := range p2p {
		p2p[i].Kind = coll.Send
	}
	if err := CheckSlots(p2p, plan.Lengths{Bytes: 64}); err == nil || !strings.Contains(err.Error(), "send is no collective") {
		t.Errorf("a plan for send: %v", err)
	}
}

func TestErrorsOfASequenceNameTheCall(t *testing.T) {
	good := build(t, coll.AllReduce, shmplan.OneShot, 7, 0, plan.LargeSlots, 64)
	bad := build(t, coll.Broadcast, shmplan.OneShot, 7, 2, plan.LargeSlots, 64)
	bad[2].Stages[0] = plan.Stage{Action: plan.Await, From: plan.Others}
	err := CheckSlotCalls(SlotCall{Plans: good, Lengths: plan.Lengths{Bytes: 64}}, SlotCall{Plans: bad, Lengths: plan.Lengths{Bytes: 64}})
	for _, want := range []string{"2 calls, 7 ranks", "rank 0, call 1 (broadcast), chunk 0, stage 0 (read) waits for rank 2's filled", "and 3 ranks more"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestBarrierInTheMiddleOfASequence(t *testing.T) {
	ok := SlotCall{Plans: build(t, coll.Barrier, shmplan.OneShot, 3, 0, plan.SmallSlots, 64)}
	bad := SlotCall{Plans: build(t, coll.Barrier, shmplan.OneShot, 3, 0, plan.SmallSlots, 64)}
	bad.Plans = with(bad.Plans, 1, func(s []plan.Stage) []plan.Stage { return s[:1] })
	if err := CheckSlotCalls(ok, ok, ok); err != nil {
		t.Error(err)
	}
	// That ranks have met in an earlier barrier does not count for this one.
	if err := CheckSlotCalls(ok, bad, ok); err == nil || !strings.Contains(err.Error(), "rank 1, at the end of the call: it may leave") {
		t.Errorf("got %v", err)
	}
}
