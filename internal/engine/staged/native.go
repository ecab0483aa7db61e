package staged

import (
	"slices"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/bridge"
)

// This file has accesses by which a vendor's runtime moves memory in streams of the framework. The framework may have a launch queue
// on the host, as torch_npu has: what it launches comes into a stream of the runtime when its queue is drained, which asking for the
// native handle of the stream does. So a handle is asked for behind each of the framework's own calls for a stream, and nobody keeps
// it longer than for one operation.

// handles tries whether a bridge gives the native handle of a stream.
func handles(_ device.Runtime, b *bridge.Bridge) (device.Stream, error, error) {
	s, err := b.NewStream(device.Inputs)
	if err != nil {
		return s, nil, err
	}
	_, err = b.Handle(s)
	return s, err, nil
}

// nativeHandles holds the handles of an operation.
type nativeHandles struct {
	bridge *bridge.Bridge
	known  []device.Stream
	room   [3]device.Stream // of known: an operation has two streams, one of a vendor's library a third one
}

// of returns a stream with its handle.
func (h *nativeHandles) of(s device.Stream) (device.Stream, error) {
	for _, k := range h.known {
		if k.Number == s.Number {
			return k, nil
		}
	}
	handle, err := h.bridge.Handle(s)
	if err != nil {
		return s, err
	}
	s.Handle = handle
	if h.known == nil {
		h.known = h.room[:0]
	}
	h.known = append(h.known, s)
	return s, nil
}

// fork makes a stream wait for the caller's, by the framework.
func (h *nativeHandles) fork(s device.Stream) error {
	h.forget(s)
	return h.bridge.Fork(s)
}

// forget drops the handle of a stream in which the framework is about to launch something.
func (h *nativeHandles) forget(s device.Stream) {
	h.known = slices.DeleteFunc(h.known, func(k device.Stream) bool { return k.Number == s.Number })
}

// on calls f with the stream and its handle.
func (h *nativeHandles) on(s device.Stream, f func(device.Stream) error) error {
	s, err := h.of(s)
	if err != nil {
		return err
	}
	return f(s)
}

// nativeLauncher is a runtime in streams that the framework orders by its bridge.
type nativeLauncher struct {
	device.Launcher
	handles nativeHandles
	trial   *trial
}

var _ device.Scaler = (*nativeLauncher)(nil)

// Name implements device.Runtime.
func (n *nativeLauncher) Name() string { return n.trial.name }

// NewStream implements device.Runtime.
func (n *nativeLauncher) NewStream(role device.Role) (device.Stream, error) {
	if s, ok := n.trial.take(role); ok {
		return s, nil
	}
	return n.handles.bridge.NewStream(role)
}

// Fork implements device.Ordering.
func (n *nativeLauncher) Fork(s device.Stream) error { return n.handles.fork(s) }

// Join implements device.Ordering. The framework's calls come behind those of the runtime that were made before.
func (n *nativeLauncher) Join(s device.Stream) error { return n.handles.bridge.Join(s) }

// Handle implements device.Launcher.
func (n *nativeLauncher) Handle(s device.Stream) (uintptr, error) {
	s, err := n.handles.of(s)
	return s.Handle, err
}

// Scales implements device.Scaler.
func (n *nativeLauncher) Scales() bool { return n.handles.bridge.Scales() }

// Multiply implements device.Scaler.
func (n *nativeLauncher) Multiply(s device.Stream, t coll.DataType, pieces []device.Piece, factor float64) (uintptr, error) {
	n.handles.forget(s)
	return n.handles.bridge.Multiply(s, t, pieces, factor)
}

// Divide implements device.Scaler.
func (n *nativeLauncher) Divide(s device.Stream, t coll.DataType, pieces []device.Piece, divisor float64) error {
	n.handles.forget(s)
	return n.handles.bridge.Divide(s, t, pieces, divisor)
}

// CopyIn implements device.Runtime.
func (n *nativeLauncher) CopyIn(s device.Stream, c device.Copy) error {
	return n.handles.on(s, func(s device.Stream) error { return n.Launcher.CopyIn(s, c) })
}

// WriteValue implements device.Runtime.
func (n *nativeLauncher) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return n.handles.on(s, func(s device.Stream) error { return n.Launcher.WriteValue(s, word, value) })
}

// CopyWithin implements device.Launcher.
func (n *nativeLauncher) CopyWithin(s device.Stream, to, from uintptr, bytes uint64) error {
	return n.handles.on(s, func(s device.Stream) error { return n.Launcher.CopyWithin(s, to, from, bytes) })
}

// Order implements device.Launcher.
func (n *nativeLauncher) Order(first, then device.Stream) error {
	return n.handles.on(first, func(first device.Stream) error {
		return n.handles.on(then, func(then device.Stream) error { return n.Launcher.Order(first, then) })
	})
}

// native moves memory by a runtime whose streams can wait.
type native struct {
	nativeLauncher
	waiter device.Waiter
}

var _ launchingWaiter = (*native)(nil)

func (n *native) alone() device.Access { return n.handles.bridge }
func (n *native) recvQueues() int      { return queuesOf(n.waiter) }

// CopyOut implements device.Waiter.
func (n *native) CopyOut(s device.Stream, c device.Copy) error {
	return n.handles.on(s, func(s device.Stream) error { return n.waiter.CopyOut(s, c) })
}

// WaitValue implements device.Waiter.
func (n *native) WaitValue(s device.Stream, word *uint32, value uint32) error {
	return n.handles.on(s, func(s device.Stream) error { return n.waiter.WaitValue(s, word, value) })
}

// nativeInput copies inputs by a runtime whose streams cannot wait. The framework has allocated the pinned memory, since it copies the
// outputs.
type nativeInput struct {
	nativeLauncher
	bridge *bridge.Bridge
}

var _ device.Deferrer = (*nativeInput)(nil)

// Pin implements device.Runtime.
func (n *nativeInput) Pin(bytes uint64) (device.Pinned, error) { return n.bridge.Pin(bytes) }

// JoinLater implements device.Deferrer.
func (n *nativeInput) JoinLater(s device.Stream, e device.End) error { return n.bridge.JoinLater(s, e) }
