package algo

import (
	"fmt"
	"testing"

	"sagecomm/internal/coll"
)

func TestScaledParameters(t *testing.T) {
	if got := DefaultParams().Scaled(Scale{1, 1, 1, 1}); got != DefaultParams() {
		t.Errorf("scaled by 1: %+v, expected the defaults", got)
	}
	b := DefaultParams().Slots
	got := DefaultParams().Scaled(Scale{Hop: 2, Copy: 4, Far: 8, Reduce: 16})
	want := b
	want.Hop, want.Copy, want.Store, want.Far, want.Claim, want.Reduce = 2*b.Hop, 4*b.Copy, 4*b.Store, 8*b.Far, 8*b.Claim, 16*b.Reduce
	if got.Slots != want {
		t.Errorf("slots %+v, expected %+v", got.Slots, want)
	}
	if got.Channel != channelOf(want) || got.Copy != want.Copy || got.Network != DefaultParams().Network {
		t.Errorf("%+v: expected channels that follow from slots, the scaled copy, and the default network", got)
	}
}

// What a message costs between hosts decides which algorithm carries a collective out.
func TestNetworkChangesChoices(t *testing.T) {
	shape := Shape{Size: 8, Hosts: [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}, Apart: true}
	tables := map[string]string{}
	for _, x := range [][3]float64{{1, 1, 1}, {64, 1, 1}, {1, 1, 64}, {1. / 64, 1. / 64, 1}} {
		s, err := NewSelector(shape, DefaultParams().ScaledNetwork(x[0], x[1], x[2]), Tune{})
		if err != nil {
			t.Fatal(err)
		}
		table := s.Describe(coll.AllReduce)
		for other, known := range tables {
			if known == table {
				t.Errorf("with the network scaled by %v and %v: %s", x, other, table)
			}
		}
		tables[fmt.Sprint(x)] = table
		if s.Params().Channel != DefaultParams().Channel || s.Params().Slots != DefaultParams().Slots {
			t.Errorf("%+v", s.Params())
		}
	}
	if text := NetworkSettings(DefaultParams().ScaledNetwork(1./2, 1./16, 32).Network, 7); text != "network.latency=12.5us;network.step=187.5ns;network.byte=10.24ns" {
		t.Error(text)
	} else if tune, err := ParseTune(text); err != nil || len(tune.Settings) != 3 {
		t.Errorf("%+v, %v", tune, err)
	}
}

// A line that keeps the costs of messages between hosts has all else that the user has set, in the user's words.
func TestNetworkIsKept(t *testing.T) {
	l := DefaultParams().ScaledNetwork(1./2, 1./16, 32).Network
	network := "network.latency=12.5us;network.step=187.5ns;network.byte=10.24ns"
	for text, want := range map[string]string{
		"":                      network,
		"network.byte=1ns":      network,
		" all_reduce:0-8K:ring": "all_reduce:0-8K:ring;" + network,
		"policy=thresholds; network.step =2us;ring.latency=1us;;all_to_all:pairwise; network.latency=1us": "policy=thresholds;ring.latency=1us;all_to_all:pairwise;" + network,
	} {
		got := KeepNetwork(text, l)
		if got != want {
			t.Errorf("%q becomes %q, expected %q", text, got, want)
		}
		before, err := ParseTune(text)
		if err != nil {
			t.Error(err)
		}
		if tune, err := ParseTune(got); err != nil || before.SetsNetwork() || !tune.SetsNetwork() || len(tune.Rules) != len(before.Rules) || tune.Policy != before.Policy {
			t.Errorf("%q: %+v, %v", got, tune, err)
		}
	}
}
