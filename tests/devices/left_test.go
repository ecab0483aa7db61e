package devices

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// held returns how many descriptors this process has, and how often it has memory of the emulated libraries mapped.
func held(t *testing.T) (descriptors, mappings int) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(open), strings.Count(string(maps), "/memfd:fake-nccl")
}

// Groups that are gone leave no descriptors and no mappings, neither this library's nor those of the libraries of vendors. Communicators
// end in the background, so the test asks until nothing more is left than before.
func TestGroupsOfLibrariesLeaveNoDescriptors(t *testing.T) {
	quick.Skip(t, "it makes 28 groups")
	eachVendor(t, func(t *testing.T, v vendor) {
		all(t, 2, only(v), nil, func(r *rank) {
			outer := r.group
			used := func(name string) {
				r.group = r.join(name, nil)
				if f := r.sum(); f != nil {
					t.Fatal(f.Message)
				}
				require.Eventually(t, func() bool { return r.has(engines[v.name]) }, 20*time.Second, time.Millisecond)
				require.NoError(t, r.group.Destroy())
			}
			for i := range 3 {
				used(fmt.Sprint("before", i))
			}
			descriptors, mappings := held(t)
			for i := range 10 {
				used(fmt.Sprint("group", i))
			}
			require.Eventually(t, func() bool {
				open, mapped := held(t)
				return open <= descriptors && mapped <= mappings
			}, 20*time.Second, 10*time.Millisecond, "%d descriptors, %d mappings before", descriptors, mappings)
			require.NoError(t, outer.Destroy())
		})
	})
}
