package staged

import (
	"sync"
	"sync/atomic"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/bridge"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/runner"
)

// Access is what the engine needs of the device of one operation. It is a device.Waiter, or else a device.Deferrer.
type Access interface {
	device.Ordering
	device.Runtime
}

// FromCall returns the access to the device of a call: the bridge that the caller of the C ABI brings along, on CUDA with the
// driver to move memory, or the driver alone.
func FromCall(call runner.Call, op coll.Op) (Access, error) {
	if call.Bridge() == nil && op.Device.Type == coll.CUDA {
		return cuda.New(op)
	}
	b, err := bridge.New(call.Bridge())
	if err != nil || op.Device.Type != coll.CUDA {
		return b, err
	}
	driver, err := cuda.Open(op.Device.Index)
	if err != nil {
		return b, nil // the bridge does without the driver
	}
	known, _ := adoptions.LoadOrStore(op.Device.Index, new(adoption))
	a := &adopted{driver, b, known.(*adoption)}
	a.of.once.Do(a.try)
	if a.of.err != nil {
		return b, nil
	}
	return a, nil
}

// adoption is whether the framework of this process can order streams of the driver, and the stream that it was tried with,
// which is for inputs.
type adoption struct {
	once   sync.Once
	stream atomic.Pointer[device.Stream] // nil: an engine has it
	err    error
}

var adoptions sync.Map // of *adoption, by index of the device

// adopted orders streams by the bridge and moves memory by the driver. The streams are the driver's.
type adopted struct {
	device.Waiter
	bridge *bridge.Bridge
	of     *adoption
}

func (a *adopted) try() {
	s, err := a.NewStream(device.Inputs)
	if err == nil {
		a.of.stream.Store(&s)
	}
	a.of.err = err
}

// Name implements device.Runtime.
func (a *adopted) Name() string { return "cuda, adopted" }

// NewStream implements device.Runtime.
func (a *adopted) NewStream(role device.Role) (device.Stream, error) {
	if role == device.Inputs {
		if s := a.of.stream.Swap(nil); s != nil {
			return *s, nil
		}
	}
	s, err := a.Waiter.NewStream(role)
	if err != nil {
		return s, err
	}
	return a.bridge.Adopt(s)
}

// Fork implements device.Ordering.
func (a *adopted) Fork(s device.Stream) error { return a.bridge.Fork(s) }

// Join implements device.Ordering.
func (a *adopted) Join(s device.Stream) error { return a.bridge.Join(s) }
