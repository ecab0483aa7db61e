package coll

import "testing"

func TestCount(t *testing.T) {
	for n, want := range []string{"0 ranks", "1 rank", "2 ranks"} {
		if got := Count(n, "rank"); got != want {
			t.Errorf("%d: %q, expected %q", n, got, want)
		}
	}
}
