package algo

import "testing"

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
