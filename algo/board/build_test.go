package board

import (
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

func TestBuildRefuses(t *testing.T) {
	good := Place{0, 2, 0, LargeLane, 64}
	for _, c := range []struct {
		kind      coll.Kind
		algorithm string
		change    func(*Place)
		want      string
	}{
		{coll.AllReduce, "ring", func(*Place) {}, `all_reduce: unknown algorithm "ring", there are: one_shot, two_shot`},
		{coll.Send, LocalName, func(*Place) {}, "send: unknown algorithm"},
		{coll.AllReduce, OneShotName, func(p *Place) { p.Size = 0 }, "size is not within 1 to 512"},
		{coll.AllReduce, OneShotName, func(p *Place) { p.Rank = 2 }, "all_reduce one_shot, rank 2 of 2: rank is outside the group"},
		{coll.Broadcast, OneShotName, func(p *Place) { p.Root = 2 }, "root 2 is outside the group"},
		{coll.AllReduce, OneShotName, func(p *Place) { p.Chunk = 100 }, "chunk of 100 bytes, expected a multiple of 64 up to 262144 (large lane)"},
		{coll.AllReduce, OneShotName, func(p *Place) { p.Lane = SmallLane; p.Chunk = 16384 }, "chunk of 16384 bytes, expected a multiple of 64 up to 8192 (small lane)"},
		{coll.AllReduce, TwoShotName, func(p *Place) { p.Lane = SmallLane }, "stage 1 (fold): the small lane carries one round of flags only"},
		{coll.AllReduce, LocalName, func(*Place) {}, "stage 0 (local): for a rank alone only"},
	} {
		at := good
		c.change(&at)
		if _, err := Build(c.kind, c.algorithm, at); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for want, stages := range map[string][]Stage{
		"0 stages, expected 1 to 6":                                    {},
		"7 stages, expected 1 to 6":                                    make([]Stage, 7),
		"stage 1 (fold): lag 4, expected 0 to 3: the lane has 4 slots": {{}, {Action: Fold, Lag: 4, ToOutput: true}},
		"stage 0 (fold): the result goes nowhere":                      {{Action: Fold}},
		"stage 0 (read): chunks of several ranks need an output":       {{Action: Read, From: Others}},
	} {
		p := OneShotAllReduce(good)
		p.Stages = stages
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if Action(99).String() != "unknown action" {
		t.Error("an unknown action has a name")
	}
}
