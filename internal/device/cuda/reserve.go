//go:build cuda

package cuda

// #include <cuda.h>
// #include <stdlib.h>
import "C"

import (
	"bytes"
	"os"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/device"
	"sagecomm/internal/lazylink"
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
	now, atStart := variable(maxConnections)
	shared := d.shared()
	return min(connections(now, shared), connections(atStart, shared), reserveSize)
}

const maxConnections = "CUDA_DEVICE_MAX_CONNECTIONS"

// mpsEnabled is CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack.
const mpsEnabled = 133

// variable returns a variable of the environment as the driver finds it now, and as the process was started with it. The driver reads it when it
// makes a context: nobody tells whether that was before the variable was set.
func variable(name string) (now, atStart string) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	started, _ := os.ReadFile("/proc/self/environ") // without it there is none
	for entry := range bytes.SplitSeq(started, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			atStart = string(value)
		}
	}
	return C.GoString(C.getenv(c)), atStart
}

// shared reports whether processes share the device through NVIDIA's Multi-Process Service.
func (d *Driver) shared() (yes bool) {
	if !lazylink.CUDAHas("cuDeviceGetAttribute") {
		return false
	}
	err := d.do("cannot ask whether processes share the device", func() error {
		device, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		var n C.int
		err = failed(C.cuDeviceGetAttribute(&n, mpsEnabled, C.CUdevice(device)))
		yes = n != 0
		return err
	})
	return yes && err == nil // a driver that does not know the attribute
}

// connections returns how many queues of the hardware a device has for each priority, by the variable of the driver, where that is sure: of a
// text that is no number, how the driver reads it is not known. Clients of the Multi-Process Service have 2 unless the variable names
// another number (its manual, "Environment Variables").
func connections(text string, shared bool) int {
	byDefault, most := 8, 32
	if shared {
		byDefault = 2
	}
	text = strings.TrimSpace(text)
	n, digits := 0, 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		n = min(10*n+int(text[digits]-'0'), most)
		digits++
	}
	switch {
	case n < 1:
		return byDefault
	case digits < len(text):
		return min(n, byDefault)
	}
	return n
}
