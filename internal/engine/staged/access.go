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
	known, ok := adoptions.Load(op.Device.Index)
	if !ok {
		adopting.Lock()
		defer adopting.Unlock()
		if known, ok = adoptions.Load(op.Device.Index); !ok {
			tried, err := adopt(driver, b)
			if err != nil {
				return b, nil // the next operation tries it again
			}
			adoptions.Store(op.Device.Index, tried)
			known = tried
		}
	}
	if of := known.(*adoption); of.err == nil {
		return &adopted{driver, b, of}, nil
	}
	return b, nil
}

// adoption is whether the framework of this process can order streams of the driver, and the stream that it was tried with,
// which is for inputs.
type adoption struct {
	stream atomic.Pointer[device.Stream] // nil: an engine has it
	err    error
}

var (
	adoptions sync.Map // of *adoption, by index of the device
	adopting  sync.Mutex
)

// adopt tries whether a bridge can order a stream of the driver. An error is of the driver.
func adopt(driver device.Waiter, b *bridge.Bridge) (*adoption, error) {
	s, err := driver.NewStream(device.Inputs)
	if err != nil {
		return nil, err
	}
	a := new(adoption)
	if s, a.err = b.Adopt(s); a.err == nil {
		a.stream.Store(&s)
	}
	return a, nil
}

// adopted orders streams by the bridge and moves memory by the driver. The streams are the driver's.
type adopted struct {
	device.Waiter
	bridge *bridge.Bridge
	of     *adoption
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
