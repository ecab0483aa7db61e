// Package vendors lists the runtimes of vendors: which device of torch each one serves, and how an operation gets at it.
package vendors

import (
	"fmt"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/ascend"
	"sagecomm/internal/device/cambricon"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/lazylink"
)

// Vendor is a vendor's runtime.
type Vendor struct {
	Name    string // of its devices in torch
	Library string
	// Devices returns how many devices this process may use, or in one line why there is none.
	Devices func() (int, error)
	// Open returns the runtime of a device.
	Open func(index int) (device.Runtime, error)
	// New returns the access of an operation whose caller brings no bridge.
	New func(coll.Op) (device.Access, error)
	// Captured returns device.ErrCaptured if a stream of a device is being captured, or why the runtime does not tell. nil: this
	// library does not ask the runtime.
	Captured func(index int, stream uintptr) error
	// Locate returns the device on which memory is, or found false if the runtime does not know it as memory of a device. nil: this
	// library does not ask the runtime.
	Locate func(pointer uintptr) (index int, found bool, err error)

	number coll.DeviceType
}

var all = []Vendor{
	{"cuda", "libcuda.so.1", cuda.Devices, opened(cuda.Open), accessed(cuda.New), cuda.Captured, cuda.Locate, coll.CUDA},
	{"npu", "libascendcl.so", ascend.Devices, opened(ascend.Open), accessed(ascend.New), ascend.Captured, ascend.Locate,
		coll.PrivateUse1},
	{"mlu", "libcnrt.so", cambricon.Devices, opened(cambricon.Open),
		func(coll.Op) (device.Access, error) { return nil, cambricon.ErrCannotWait }, nil, nil, coll.PrivateUse1},
}

func opened[D device.Runtime](open func(int) (D, error)) func(int) (device.Runtime, error) {
	return func(index int) (device.Runtime, error) { return open(index) }
}

func accessed[D device.Access](access func(coll.Op) (D, error)) func(coll.Op) (device.Access, error) {
	return func(op coll.Op) (device.Access, error) { return access(op) }
}

// Named returns the vendor whose devices have that name in torch.
func Named(name string) (Vendor, bool) {
	for _, v := range all {
		if v.Name == name {
			return v, true
		}
	}
	return Vendor{}, false
}

// New returns the access of an operation whose caller brings no bridge. Torch has one number for the devices of all vendors but
// NVIDIA. Among them the first one counts that has a device in this process.
func New(op coll.Op) (device.Access, error) {
	why := ""
	for _, v := range all {
		if v.number != op.Device.Type {
			continue
		}
		if _, err := v.Devices(); err != nil {
			why += fmt.Sprintf("; %v", err)
			continue
		}
		return v.New(op)
	}
	return nil, fmt.Errorf("the caller gives no access to the streams of the device (sagecomm_op.bridge), and this library has none%s", why)
}

// Locate returns where memory is. It asks the runtimes that this process has loaded, because the pointer cannot be of another one.
func Locate(pointer uintptr) (coll.Device, error) {
	for _, v := range all {
		if v.Locate == nil || !lazylink.Loaded(v.Library) {
			continue
		}
		index, found, err := v.Locate(pointer)
		if err != nil {
			return coll.Device{}, fmt.Errorf("the runtime of %s does not tell where memory is: %w", v.Name, err)
		}
		if found {
			return coll.Device{Type: v.number, Index: index}, nil
		}
	}
	return coll.Device{}, nil
}

// Captured returns device.ErrCaptured if the stream of an operation whose caller brings no bridge is being captured, or why the runtime
// does not tell.
func Captured(op coll.Op) error {
	for _, v := range all {
		if v.number != op.Device.Type {
			continue
		}
		if _, err := v.Devices(); err == nil {
			if v.Captured == nil {
				return nil
			}
			return v.Captured(op.Device.Index, op.Stream)
		}
	}
	return nil // New has the reason
}

// Found is what this process has of a vendor.
type Found struct {
	Name    string `json:"name"`
	Library string `json:"library"`
	Devices int    `json:"devices"`
	Why     string `json:"why,omitempty"` // there are no devices
}

// Find looks for the devices of all vendors. It opens and starts their libraries.
func Find() (list []Found) {
	for _, v := range all {
		f := Found{Name: v.Name, Library: v.Library}
		n, err := v.Devices()
		if f.Devices = n; err != nil {
			f.Why = err.Error()
		}
		list = append(list, f)
	}
	return list
}
