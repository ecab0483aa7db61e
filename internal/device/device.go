// Package device is the seam between engines and what owns the memory and the streams of devices. [Ordering] puts an operation
// in its place among the commands of its caller's stream, and [Runtime] moves memory. Both are of one device and are used by
// one operation, on the thread that issues it. None of their methods waits for a device.
//
// Package bridge implements both on the functions that the caller of the C ABI brings along, package cuda on the driver of CUDA.
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

	// Finish ends the operation in a stream: what is in the stream then, the caller waits for when it waits for the operation.
	// It is the last method that is called.
	Finish(s Stream, e End) error
}

// End is the end of an operation on a device. The copies into the device come when the input is in pinned memory, so that *Ready
// is ReadyValue, and the host is done with it, so that *Done is at least DoneValue. Behind them, TakenValue is written to *Taken.
// If the operation fails, the host is done with it early; the copies come or do not, and the write comes in any case.
type End struct {
	Copies                            []Copy
	Ready, Done, Taken                *uint32
	ReadyValue, DoneValue, TakenValue uint32
}

// MaxValue is the largest value that WriteValue writes.
const MaxValue = 4096

// Runtime makes streams and pinned memory, and queues copies.
type Runtime interface {
	// Name returns the name of the implementation. The streams of one mean nothing to another.
	Name() string

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
