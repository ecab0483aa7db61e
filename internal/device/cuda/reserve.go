//go:build cuda

package cuda

// #include <stdlib.h>
import "C"

import (
	"strconv"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/device"
)

// reserveSize is how many streams of each role are made at once: for the collectives of some groups, and for the p2p operations of one.
// Of those for recvs there are no more than queues of the hardware, and none is made later.
const reserveSize = 16

// reserve has the streams of a device that were made ahead, those made first come first.
type reserve struct {
	roles  [device.Recvs + 1]device.Reserve
	queues int // of recvs
}

type streamsOf struct {
	reserves device.Once[int, *reserve]
}

var reserved streamsOf

// of returns the reserve of a device, which it makes first.
func (r *streamsOf) of(d *Driver) (*reserve, error) {
	return r.reserves.Get(d.index, func() (*reserve, error) {
		of := new(reserve)
		for range reserveSize { // in turns: an engine's two streams do not share a queue of the hardware, also if they have one priority
			for _, role := range []device.Role{device.Inputs, device.Outputs} {
				if !of.roles[role].Add(func() (device.Stream, error) { return d.makeStream(role) }) {
					return of, nil
				}
			}
		}
		for range d.queuesOfRecvs() { // one after the other: the driver spreads streams over queues in turns
			if !of.roles[device.Recvs].Add(func() (device.Stream, error) { return d.makeStream(device.Recvs) }) {
				break
			}
			of.queues++
		}
		return of, nil
	})
}

// stream returns a stream. Where none is left it makes one.
func (r *streamsOf) stream(d *Driver, role device.Role) (device.Stream, error) {
	of, err := r.of(d)
	if err != nil {
		return device.Stream{}, err
	}
	return of.roles[role].Take(func() (device.Stream, error) { return d.makeStream(role) })
}

// RecvQueues implements device.QueueSharer.
func (d *Driver) RecvQueues() int {
	of, err := reserved.of(d)
	if err != nil {
		return 0
	}
	return of.queues
}

// queuesOfRecvs returns for how many streams of recvs the device has queues: none where they would share those of outputs.
func (d *Driver) queuesOfRecvs() int {
	var least, greatest int
	err := d.do("cannot ask for priorities", func() (err error) {
		least, greatest, err = cu.StreamPriorityRange()
		return err
	})
	if err != nil || greatest+int(device.Recvs) >= least {
		return 0
	}
	return min(connections(variable("CUDA_DEVICE_MAX_CONNECTIONS")), reserveSize)
}

// variable returns a variable of the environment as the driver finds it: os.Getenv has those with which the process was started.
func variable(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.getenv(c))
}

// connections returns how many queues of the hardware a device has for each priority, by the variable of the driver.
func connections(text string) int {
	const byDefault, most = 8, 32
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 {
		return byDefault
	}
	return min(n, most)
}
