// Package device is the seam between engines and what owns the memory and the streams of devices. [Ordering] puts an operation
// in its place among the commands of its caller's stream, and [Runtime] moves memory. Both are of one device and are used by
// one operation, on the thread that issues it. None of their methods waits for a device.
//
// Package bridge implements both on the functions that the caller of the C ABI brings along.
package device

import "unsafe"

// Stream is a stream that only this library uses. It stays valid until the process ends.
type Stream uint64

// Copy is a copy between pinned host memory and memory of a device. The method that takes it gives the direction.
type Copy struct {
	Host   unsafe.Pointer
	Device uintptr // the CPU cannot use this address, and it may look like one of the host
	Bytes  uint64
}

// Pinned is pinned host memory, aligned to 256 bytes.
type Pinned interface {
	Address() unsafe.Pointer
	// Release gives the memory back. Any goroutine may call it. Requires: no queued command uses the memory.
	Release()
}

// Ordering orders streams of the library with those of the caller.
type Ordering interface {
	// Fork makes a stream wait for what the caller's stream holds now.
	Fork(s Stream) error

	// Finish ends the operation. When the operation is complete, and has not failed, the copies into the device are queued in
	// the stream, followed by a write of value to *word. If it fails, or is not issued, value is written all the same. The
	// caller's wait for the operation is a wait for what the stream holds then. It is the last method that is called.
	Finish(s Stream, copies []Copy, word *uint32, value uint32) error
}

// MaxValue is the largest value that WriteValue writes.
const MaxValue = 4096

// Runtime makes streams and pinned memory, and queues copies.
type Runtime interface {
	// NewStream makes a stream on the device of the operation.
	NewStream() (Stream, error)

	// Pin allocates pinned memory, which all devices of that type may use.
	Pin(bytes uint64) (Pinned, error)

	// CopyIn queues a copy from the device into pinned memory.
	CopyIn(s Stream, c Copy) error

	// WriteValue queues a write of at most MaxValue to a word of pinned memory. Whoever sees the value sees the copies in front
	// of it.
	WriteValue(s Stream, word *uint32, value uint32) error
}
