package sendrecv

import (
	"strings"
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

func TestPlacesOnHosts(t *testing.T) {
	for _, c := range []struct {
		hosts [][]int
		want  string
	}{
		{[][]int{{0, 1}, {2}}, "1 rank on host 1 and 2 on host 0: rails need as many on each"},
		{[][]int{{0}, {0}, {2}}, "rank 0 on host 1 is on another one, too"},
		{[][]int{{0}, {3}, {2}}, "rank 3 on host 1 is on another one, too, or outside the group of 3"},
		{[][]int{{0}, {2}}, "rank 1 is on no host"},
		{[][]int{{}}, "0 ranks on host 0"},
	} {
		_, err := Build(coll.AllReduce, Hierarchical, Place{Size: 3, Chunk: plan.Unit, Hosts: c.hosts})
		rejected(t, err, "all_reduce hierarchical: ", c.want)
	}
}

func TestBuildRefuses(t *testing.T) {
	_, err := Build(coll.AllReduce, "rign", Place{Size: 2, Chunk: 64})
	rejected(t, err, `all_reduce: unknown algorithm "rign", there are: ring`)
	_, err = Build(coll.AllReduce, Ring, Place{Rank: 2, Size: 2, Chunk: 64})
	rejected(t, err, "all_reduce ring: rank 2, root 0 in a group of 2")
	_, err = Build(coll.AllReduce, Ring, Place{Size: 2, Chunk: 65})
	rejected(t, err, "chunk of 65 bytes")
}

// rejected fails the test unless err holds every text.
func rejected(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Error("accepted")
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v\nlacks %q", err, text)
		}
	}
}
