package algo

import (
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// mostOneShotOnDevices bounds an all_reduce or reduce of more than two ranks in which each rank reduces the whole. Libraries with such
// kernels have limits of 256 KiB to 512 KiB there. Nothing of this was measured on a device.
const mostOneShotOnDevices = 256 << 10

// DeviceAlgorithm returns the slot algorithm of an operation whose slots are in the memory of devices. All ranks with the same
// arguments get the same one.
func DeviceAlgorithm(kind coll.Kind, ranks int, bytes uint64) string {
	switch {
	case ranks == 1:
		return shmplan.Local
	case ranks > 2 && bytes > mostOneShotOnDevices && (kind == coll.AllReduce || kind == coll.Reduce):
		return shmplan.TwoShot
	}
	return shmplan.OneShot
}
