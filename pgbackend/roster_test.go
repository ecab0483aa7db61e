package pgbackend

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// In a group of more than 64 ranks rank 0 reads for all what each has written. All name the rank that cannot take part, or is set up differently, also
// where that is rank 0.
func TestRanksOfALargeGroupNameWhoFails(t *testing.T) {
	const size = 66
	for _, culprit := range []int{0, 40} {
		of := func(o options) func(rank int) options {
			return func(rank int) options {
				if rank == culprit {
					return o
				}
				return nil
			}
		}
		_, errs := tryWorld(t, size, opTimeout, of(options{"tune": "all_reduce:nonsense"}))
		for rank, err := range errs {
			require.ErrorContains(t, err, "nonsense", rank)
			if rank != culprit {
				require.ErrorContains(t, err, fmt.Sprintf("1 of %d ranks failed; rank %d: ", size, culprit))
			}
		}
		_, errs = tryWorld(t, size, opTimeout, of(options{"tune": "all_reduce:ring"}))
		for _, err := range errs {
			require.ErrorContains(t, err, fmt.Sprintf("ranks 0 and %d are set up differently: SAGECOMM_TUNE", max(culprit, 1)))
		}
	}
	w, errs := tryWorld(t, size, opTimeout, nil)
	for _, err := range errs {
		require.NoError(t, err)
	}
	w.each(func(g *Group) error { return asError(sum(g, 100)) })
}
