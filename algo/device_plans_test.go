package algo

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

const deviceSlot = 2 << 20

// choicesOver returns the choices of ranks whose devices are all joined by one link.
func choicesOver(size int, link DeviceLink) *DeviceChoices {
	return NewDeviceChoices(size, deviceSlot, LinkDevices(size, func(int, int) DeviceLink { return link }, DefaultParams()))
}

// border returns the longest length that goes through one-shot.
func border(t *testing.T, d *DeviceChoices, kind coll.Kind) uint64 {
	longest := uint64(0)
	for bytes := uint64(1); bytes <= 64<<20; bytes *= 2 {
		if d.Choose(kind, 0, bytes).Algorithm == shmplan.OneShot {
			require.Equal(t, longest, bytes/2, "one-shot beyond two-shot")
			longest = bytes
		}
	}
	return longest
}

// The border between one-shot and two-shot follows from the links: the slower they are, the earlier the bytes that one-shot moves more
// than once outweigh the second round.
func TestBorderOnDevicesFollowsFromLinks(t *testing.T) {
	nvlink := DeviceLink{Class: NVLink, NVLinks: 18, Version: "4.0"}
	for _, kind := range []coll.Kind{coll.AllReduce, coll.Reduce} {
		before := uint64(math.MaxUint64)
		for _, link := range []DeviceLink{nvlink, {Class: PCISwitch}, {Class: HostBridge}, {Class: Socket}} {
			got := border(t, choicesOver(8, link), kind)
			require.LessOrEqual(t, got, before, "%v over %v", kind, link.Class)
			require.NotZero(t, got, "%v over %v", kind, link.Class)
			before = got
		}
		require.Less(t, border(t, choicesOver(8, DeviceLink{Class: Socket}), kind), border(t, choicesOver(8, nvlink), kind), "%v", kind)
	}
	// Ranks that share a device take turns, so each byte costs them more, the more of them there are.
	require.Less(t, border(t, choicesOver(8, DeviceLink{Class: SameDevice}), coll.AllReduce), border(t, choicesOver(4, DeviceLink{Class: SameDevice}), coll.AllReduce))
}

// Between two ranks, one-shot moves no more than two-shot, and has one round less.
func TestTwoRanksOnDevicesUseOneShot(t *testing.T) {
	for class := SameDevice; class <= Socket; class++ {
		d := choicesOver(2, DeviceLink{Class: class, NVLinks: 4})
		require.EqualValues(t, 64<<20, border(t, d, coll.AllReduce), "%v", class)
	}
}

// Where links differ, the slow ones bound the time, so the border is that of a group of slow links rather than of fast ones; and it is
// the same whatever the order of the ranks is.
func TestChoicesOverUnevenLinks(t *testing.T) {
	nvlink := DeviceLink{Class: NVLink, NVLinks: 18, Version: "4.0"}
	uneven := func(apart func(a, b int) bool) *DeviceChoices {
		return NewDeviceChoices(8, deviceSlot, LinkDevices(8, func(a, b int) DeviceLink {
			if apart(a, b) {
				return DeviceLink{Class: Socket}
			}
			return nvlink
		}, DefaultParams()))
	}
	halves := uneven(func(a, b int) bool { return a/4 != b/4 })
	turns := uneven(func(a, b int) bool { return a%2 != b%2 })
	require.Less(t, border(t, halves, coll.AllReduce), border(t, choicesOver(8, nvlink), coll.AllReduce))
	require.Equal(t, halves.Describe(coll.AllReduce), turns.Describe(coll.AllReduce))
	// A root that is far from all others gets its own table.
	star := uneven(func(a, b int) bool { return a == 0 })
	require.NotEqual(t, star.table(coll.Reduce, 0), star.table(coll.Reduce, 5))
}

// A broadcast of several chunks is a pipeline: readers take one chunk while the root writes the next.
func TestChunksOnDevices(t *testing.T) {
	d := choicesOver(4, DeviceLink{Class: NVLink, NVLinks: 4, Version: "4.0"})
	require.Less(t, d.Choose(coll.Broadcast, 0, deviceSlot).Chunk, deviceSlot)
	require.Equal(t, deviceSlot, d.Choose(coll.Broadcast, 0, 1<<40).Chunk, "long ones have the fewest commands")
	require.Equal(t, deviceSlot, d.Choose(coll.AllToAll, 0, deviceSlot).Chunk)
}

// All choices exist, in groups of all sizes.
func TestChoicesOnDevicesExist(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 8} {
		d := choicesOver(ranks, DeviceLink{Class: SameDevice})
		for kind := range coll.KindCount {
			if !kind.Collective() {
				continue
			}
			for _, bytes := range []uint64{0, 1, 4096, deviceSlot, 1 << 50} {
				c := d.Choose(kind, ranks-1, bytes)
				require.Zero(t, c.Chunk%plan.Align)
				_, err := shmplan.Build(kind, c.Algorithm, shmplan.Place{Size: ranks, Chunk: 4096, Slots: plan.LargeSlots})
				require.NoError(t, err, "%v", kind)
			}
			require.Contains(t, d.Describe(kind), "-inf:")
		}
	}
}

func TestExplainOnDevices(t *testing.T) {
	d := choicesOver(8, DeviceLink{Class: Socket})
	list := d.Explain(coll.AllReduce, 8<<20)
	require.Len(t, list, 2)
	require.Equal(t, "all_reduce: 0-16384:one_shot@chunk=2097152, 16384-inf:two_shot@chunk=2097152", d.Describe(coll.AllReduce))
	require.Equal(t, []string{shmplan.TwoShot, shmplan.OneShot}, []string{list[0].Algorithm, list[1].Algorithm})
	require.True(t, list[0].Chosen)
	require.Contains(t, list[1].Why, "times as long as two_shot")
	require.Less(t, list[0].Predicted, list[1].Predicted)
	require.Equal(t, "the only one", choicesOver(1, DeviceLink{}).Explain(coll.AllReduce, 8)[0].Why)
}
