package shmplan

import (
	"strings"
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

func TestBuildRefuses(t *testing.T) {
	good := Place{0, 2, 0, plan.LargeSlots, 64}
	for _, c := range []struct {
		kind      coll.Kind
		algorithm string
		change    func(*Place)
		want      string
	}{
		{coll.AllReduce, "ring", func(*Place) {}, `all_reduce: unknown algorithm "ring", there are: one_shot, two_shot`},
		{coll.Send, Local, func(*Place) {}, "send: unknown algorithm"},
		{coll.AllReduce, OneShot, func(p *Place) { p.Size = 0 }, "size is not within 1 to 512"},
		{coll.AllReduce, OneShot, func(p *Place) { p.Rank = 2 }, "all_reduce one_shot, rank 2 of 2: rank is outside the group"},
		{coll.Broadcast, OneShot, func(p *Place) { p.Root = 2 }, "root 2 is outside the group"},
		{coll.AllReduce, OneShot, func(p *Place) { p.Chunk = 100 }, "chunk of 100 bytes, expected a multiple of 64 up to 262144 (large slots)"},
		{coll.AllReduce, OneShot, func(p *Place) { p.Slots = plan.SmallSlots; p.Chunk = 16384 }, "chunk of 16384 bytes, expected a multiple of 64 up to 8192 (small slots)"},
		{coll.AllReduce, TwoShot, func(p *Place) { p.Slots = plan.SmallSlots }, "stage 1 (reduce): small slots carry one round of flags only"},
		{coll.AllReduce, Local, func(*Place) {}, "stage 0 (local): for a rank alone only"},
	} {
		at := good
		c.change(&at)
		if _, err := Build(c.kind, c.algorithm, at); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for want, stages := range map[string][]plan.Stage{
		"0 stages, expected 1 to 6":                                   {},
		"7 stages, expected 1 to 6":                                   make([]plan.Stage, 7),
		"stage 1 (reduce): lag 4, expected 0 to 3: there are 4 slots": {{}, {Action: plan.ReduceSlots, Lag: 4, ToOutput: true}},
		"stage 0 (reduce): the result goes nowhere":                   {{Action: plan.ReduceSlots}},
		"stage 0 (read): chunks of several ranks need an output":      {{Action: plan.Read, From: plan.Others}},
	} {
		p := OneShotAllReduce(good)
		p.Stages = stages
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if plan.Action(99).String() != "unknown action" {
		t.Error("an unknown action has a name")
	}
}
