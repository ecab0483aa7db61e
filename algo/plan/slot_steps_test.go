package plan

import "testing"

func TestSharesCoverAChunkInOrder(t *testing.T) {
	for size := 1; size <= 70; size++ {
		for _, n := range []uint64{0, 1, 63, 64, 65, 127, 128, 1000, 4096, 8192 - 2, 16384} {
			at := uint64(0)
			for rank := range size {
				from, to := share(n, size, rank)
				if from != at || to < from {
					t.Fatalf("share %d of %d of %d bytes is [%d, %d), the one before ends at %d", rank, size, n, from, to, at)
				}
				if to < n && to%Align != 0 {
					t.Fatalf("share %d of %d of %d bytes ends at %d", rank, size, n, to)
				}
				at = to
			}
			if at != n {
				t.Fatalf("the shares of %d ranks of %d bytes end at %d", size, n, at)
			}
		}
	}
}
