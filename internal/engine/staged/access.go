package staged

import (
	"math"
	"sync/atomic"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/bridge"
	"sagecomm/internal/device/vendors"
	"sagecomm/internal/runner"
)

// frameworkStreams is a Waiter in streams that a framework orders.
type frameworkStreams interface {
	// alone returns an access whose streams wait for nothing, by the framework alone.
	alone() device.Access

	// recvQueues returns how many streams of the role device.Recvs have a queue of the hardware each.
	recvQueues() int
}

// queuesOf returns how many streams for recvs a runtime has queues of the hardware for. Where streams share none, there is no limit.
func queuesOf(rt device.Waiter) int {
	if shared, ok := rt.(device.QueueSharer); ok {
		return shared.RecvQueues()
	}
	return math.MaxInt
}

// launchingWaiter is a runtime whose streams take kernels and wait for words.
type launchingWaiter interface {
	device.Waiter
	device.Launcher
}

// FromCall returns the access to the device of a call: the bridge that the caller of the C ABI brings along, with the vendor's
// runtime to move memory where there is one, or that runtime alone.
func FromCall(call runner.Call, op coll.Op) (device.Access, error) {
	if call.Bridge() == nil {
		return vendors.New(op)
	}
	b, err := bridge.New(call.Bridge())
	if err != nil {
		return nil, err
	}
	return WithBridge(b, op)
}

// WithBridge returns the access for a call that brings a bridge. The framework takes streams of CUDA's driver for its own. Frameworks
// of other vendors do not, so their runtimes use the framework's streams. Without any of this the bridge moves the memory. The error is
// that of a caller's stream that is being captured.
func WithBridge(b *bridge.Bridge, op coll.Op) (device.Access, error) {
	if err := captured(b, op); err != nil {
		return nil, err
	}
	v, known := vendors.Named(b.DeviceName())
	if !known {
		return b, nil
	}
	return withRuntime(v, b, op.Device), nil
}

// Captured returns device.ErrCaptured if the caller's stream of a call is being captured, or why that cannot be found out.
func Captured(call runner.Call, op coll.Op) error {
	if call.Bridge() == nil {
		return vendors.Captured(op)
	}
	b, err := bridge.New(call.Bridge())
	if err != nil {
		return nil // FromCall returns it
	}
	return captured(b, op)
}

func captured(b *bridge.Bridge, op coll.Op) error {
	if b.Captured() {
		return device.ErrCaptured
	}
	if v, known := vendors.Named(b.DeviceName()); known && b.MayBeCaptured() && v.Captured != nil {
		return v.Captured(op.Device.Index, op.Stream)
	}
	return nil
}

// withRuntime returns the access by a bridge and a vendor's runtime, or the bridge alone.
func withRuntime(v vendors.Vendor, b *bridge.Bridge, on coll.Device) device.Access {
	of, err := tried(v, b, on)
	if err != nil || of.err != nil { // the next operation tries it again if err is not nil
		return b
	}
	switch {
	case of.launcher == nil:
		return b
	case on.Type == coll.CUDA && of.waiter != nil:
		return &adopted{of.waiter, b, of}
	case of.waiter != nil:
		return &native{nativeLauncher{of.launcher, nativeHandles{bridge: b}, of}, of.waiter}
	}
	return &nativeInput{nativeLauncher{of.launcher, nativeHandles{bridge: b}, of}, b}
}

// trial is what the operations on a device share: the vendor's runtime, and whether it and the framework of this process can use the
// streams of one of them.
type trial struct {
	launcher device.Launcher                  // nil: the runtime is none
	waiter   launchingWaiter                  // nil: its streams wait for nothing
	name     string                           // of the runtime in the framework's streams
	err      error                            // why the streams cannot be used
	stream   atomic.Pointer[device.Stream]    // with which that was tried, for inputs; nil: an engine has it
	unknown  [device.Recvs + 1]device.Reserve // streams of the runtime of which the framework was told in vain, for the next operation
	aside    device.Reserve                   // streams of the framework, for p2p operations for which none of the runtime waits
}

// reserveSize is how many streams of a framework are made ahead: two for each stream of the caller that has p2p operations.
const reserveSize = 2 * mostOrigins

// aside is a bridge whose streams were made ahead, as long as there are some.
type aside struct {
	*bridge.Bridge
	reserve *device.Reserve
}

// NewStream implements device.Runtime.
func (a *aside) NewStream(role device.Role) (device.Stream, error) {
	return a.reserve.Take(func() (device.Stream, error) { return a.Bridge.NewStream(role) })
}

// trials has the trial of each device, which the first operation makes. A trial has an error if the runtime does not open or gives no
// stream; the next operation makes it again.
var trials device.Once[coll.Device, *trial]

func tried(v vendors.Vendor, b *bridge.Bridge, on coll.Device) (*trial, error) {
	if of, known, err := trials.Known(on); known {
		return of, err
	}
	return trials.Get(on, func() (*trial, error) { return try(v, b, on) })
}

func try(v vendors.Vendor, b *bridge.Bridge, on coll.Device) (*trial, error) {
	rt, err := v.Open(on.Index)
	if err != nil {
		return nil, err
	}
	how := handles
	if on.Type == coll.CUDA {
		how = adopt
	}
	s, unusable, err := how(rt, b)
	if err != nil {
		return nil, err
	}
	of := &trial{name: rt.Name() + ", in the framework's streams", err: unusable}
	of.launcher, _ = rt.(device.Launcher)
	of.waiter, _ = rt.(launchingWaiter)
	if unusable == nil {
		of.stream.Store(&s)
		if on.Type == coll.CUDA {
			for range reserveSize {
				if !of.aside.Add(func() (device.Stream, error) { return b.NewStream(device.Inputs) }) {
					break
				}
			}
		}
	}
	return of, nil
}

// take returns the stream of the trial, once.
func (t *trial) take(role device.Role) (device.Stream, bool) {
	if role != device.Inputs {
		return device.Stream{}, false
	}
	s := t.stream.Swap(nil)
	if s == nil {
		return device.Stream{}, false
	}
	return *s, true
}

// adopt tries whether a bridge can order a stream of a runtime.
func adopt(rt device.Runtime, b *bridge.Bridge) (device.Stream, error, error) {
	s, err := rt.NewStream(device.Inputs)
	if err != nil {
		return s, nil, err
	}
	s, err = b.Adopt(s)
	return s, err, nil
}

// adopted orders streams by the bridge and moves memory by the driver. The streams are the driver's.
type adopted struct {
	launchingWaiter
	bridge *bridge.Bridge
	of     *trial
}

func (a *adopted) alone() device.Access { return &aside{a.bridge, &a.of.aside} }

func (a *adopted) recvQueues() int { return queuesOf(a.launchingWaiter) }

// Name implements device.Runtime.
func (a *adopted) Name() string { return "cuda, adopted" }

// NewStream implements device.Runtime.
func (a *adopted) NewStream(role device.Role) (device.Stream, error) {
	if s, ok := a.of.take(role); ok {
		return s, nil
	}
	made, err := a.of.unknown[role].Take(func() (device.Stream, error) { return a.launchingWaiter.NewStream(role) })
	if err != nil {
		return made, err
	}
	s, err := a.bridge.Adopt(made)
	if err != nil {
		a.of.unknown[role].Add(func() (device.Stream, error) { return made, nil })
	}
	return s, err
}

// Fork implements device.Ordering.
func (a *adopted) Fork(s device.Stream) error { return a.bridge.Fork(s) }

// Join implements device.Ordering.
func (a *adopted) Join(s device.Stream) error { return a.bridge.Join(s) }
