package algo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

func TestAlgorithmsOnDevices(t *testing.T) {
	const border = 256 << 10
	for _, c := range []struct {
		kind  coll.Kind
		ranks int
		bytes uint64
		want  string
	}{
		{coll.AllReduce, 1, border + 1, shmplan.Local},
		{coll.AllReduce, 2, border + 1, shmplan.OneShot},
		{coll.AllReduce, 3, border, shmplan.OneShot},
		{coll.AllReduce, 3, border + 1, shmplan.TwoShot},
		{coll.Reduce, 3, border + 1, shmplan.TwoShot},
		{coll.AllGather, 3, border + 1, shmplan.OneShot},
	} {
		require.Equal(t, c.want, DeviceAlgorithm(c.kind, c.ranks, c.bytes), "%v", c)
	}
	for kind := range coll.KindCount { // all of them exist
		if kind.Collective() {
			for _, ranks := range []int{1, 2, 3} {
				_, err := shmplan.Build(kind, DeviceAlgorithm(kind, ranks, border+1), shmplan.Place{Size: ranks, Chunk: 4096, Slots: 1})
				require.NoError(t, err, "%v", kind)
			}
		}
	}
}
