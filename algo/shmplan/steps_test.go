package shmplan

import (
	"fmt"
	"testing"

	"sagecomm/algo/plan"
)

func TestStepsCanBeLeftEarly(t *testing.T) {
	p := OneShotAllReduce(Place{0, 2, 0, plan.LargeSlots, 64})
	n := 0
	for range plan.Concrete(p, 640) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d steps", n)
	}
}

func TestStepsOfAPipeline(t *testing.T) {
	p := TwoShotAllReduce(Place{1, 2, 0, plan.LargeSlots, 128})
	var got []string
	for s := range plan.Concrete(p, 256+10) {
		got = append(got, fmt.Sprint(s.Action, s.Chunk, s.Waits, len(s.Moves), s.Posts))
	}
	want := []string{
		"publish 0 [{0 consumed -4}] 1 [filled]",
		"publish 1 [{0 consumed -3}] 1 [filled]", "reduce 0 [{0 filled 0}] 1 [reduced]",
		"publish 2 [{0 consumed -2}] 1 [filled]", "reduce 1 [{0 filled 1}] 1 [reduced]", "collect 0 [{0 reduced 0}] 1 [consumed]",
		"reduce 2 [{0 filled 2}] 0 [reduced]", "collect 1 [{0 reduced 1}] 1 [consumed]",
		"collect 2 [{0 reduced 2}] 1 [consumed]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
