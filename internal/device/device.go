// Package device is the seam between engines and what owns the memory and the streams of devices. [Ordering] puts an operation
// in its place among the commands of its caller's stream, and [Runtime] moves memory. Both are of one device and are used by
// one operation, on the thread that issues it. None of their methods waits for a device, except for those
// that make streams, memory or handles where a driver does ([Reserve], [Once]).
//
// Package bridge implements both on the functions that the caller of the C ABI brings along, package cuda on the driver of CUDA,
// package ascend on the runtime of Huawei's NPUs. Package cambricon is a Launcher without Waiter, on that of Cambricon's MLUs. One of the one
// package goes with one of the other: with torch's CUDA, streams are ordered by the bridge and memory is moved by the driver.
package device

import (
	"errors"
	"unsafe"
)

// Stream is a stream that only this library uses. It stays valid until the process ends.
type Stream struct {
	Number uint64  // its name for a bridge; 0: no bridge knows it
	Handle uintptr // its name for the runtime of the device; 0: only a bridge knows it
}

// Role is what a stream is for.
type Role uint8

// The roles.
const (
	Inputs  Role = iota // copies out of the device
	Outputs             // copies into the device, behind waits for the host
	Recvs               // the same for recvs, which may wait for what a collective that was called later brings about
)

// Copy is a copy between pinned host memory and memory of a device. The method that takes it gives the direction.
type Copy struct {
	Host   unsafe.Pointer
	Device uintptr // the CPU cannot use this address, and it may look like one of the host
	Bytes  uint64
}

// Pinned is pinned host memory, aligned to 256 bytes. It stays allocated until the process ends, because a driver that frees it may wait
// for the device, and so for streams that wait for peers.
type Pinned interface {
	Address() unsafe.Pointer
}

// Ordering orders streams of the library with those of the caller.
type Ordering interface {
	// Fork makes a stream wait for what the caller's stream holds now.
	Fork(s Stream) error

	// Join ends the operation: whoever waits for the operation waits for what the stream holds now.
	Join(s Stream) error
}

// Deferrer is an Ordering of a caller who queues the last commands of an operation itself, when it learns that the operation is
// complete. Engines need it where a runtime is no [Waiter].
type Deferrer interface {
	Ordering

	// JoinLater ends the operation: the caller will queue the copies of e in a stream.
	JoinLater(s Stream, e End) error
}

// End is the end of an operation whose caller queues the copies into the device. Behind them, Value is written to *Taken. If the
// operation fails, the copies come or do not, and the write comes in any case.
type End struct {
	Copies []Copy
	Taken  *uint32
	Value  uint32
}

// Why a vendor's runtime gives an operation no access.
var (
	ErrBeside   = errors.New("without sagecomm_op.bridge an operation ends in its caller's stream; set ordering to SAGECOMM_IN_STREAM")
	ErrCaptured = errors.New("the stream is being captured into a graph, and a graph cannot hold an operation that the CPU takes part in; call it outside of the capture")
)

// MaxValue is the largest value that WriteValue writes where streams cannot wait.
const MaxValue = 4096

// Access is what an engine needs of the device of one operation. It is a [Waiter], or else a [Deferrer].
type Access interface {
	Ordering
	Runtime
}

// Runtime makes streams and pinned memory, and queues copies.
type Runtime interface {
	// Name returns the name of the implementation. The streams of one mean nothing to another.
	Name() string

	// NewStream makes a stream on the device of the operation. Where streams can wait for words, streams of one role do not
	// share a queue of the hardware with those of another role nor with the caller's, as far as the device allows: a stream
	// that waits blocks all that is behind it in its queue.
	NewStream(Role) (Stream, error)

	// Pin allocates pinned memory, which all devices of that type may use.
	Pin(bytes uint64) (Pinned, error)

	// CopyIn queues a copy from the device into pinned memory.
	CopyIn(s Stream, c Copy) error

	// WriteValue queues a write of at most MaxValue, for a Waiter of less than 2^30, to a word of pinned memory that this runtime
	// has allocated. The word is the lower half of an aligned one of 64 bits whose upper half is 0, because some devices write and
	// compare all of it. Whoever sees the value sees the copies in front of it.
	WriteValue(s Stream, word *uint32, value uint32) error
}

// Waiter is a Runtime whose streams can wait for a word of pinned memory, so that a whole operation can be queued at once.
type Waiter interface {
	Runtime

	// WaitValue makes a stream wait until a word is at least value. The comparison is cyclic: (int32)(*word - value) >= 0.
	WaitValue(s Stream, word *uint32, value uint32) error

	// Order makes a stream wait for what another one holds now.
	Order(first, then Stream) error

	// CopyOut queues a copy from pinned memory into the device.
	CopyOut(s Stream, c Copy) error
}

// QueueSharer is a Waiter whose streams share queues of the hardware.
type QueueSharer interface {
	Waiter

	// RecvQueues returns how many streams of the role Recvs of the process have a queue each, which no stream of another role shares.
	RecvQueues() int
}

// Launcher is a Runtime whose streams take the kernels of a vendor's library, and the copies that prepare them.
type Launcher interface {
	Runtime

	// Order makes a stream wait for what another one holds now.
	Order(first, then Stream) error

	// Handle returns the name of a stream for the runtime, for calls of the vendor's library. It holds until the stream is forked.
	Handle(s Stream) (uintptr, error)

	// Vendor returns the name of the vendor's devices in torch: cuda, npu or mlu.
	Vendor() string

	// Identity returns a text that no other device of any host has.
	Identity() (string, error)

	// Current calls f while the device is current on the calling thread, which may be any thread, also after the operation.
	Current(f func() error) error

	// Allocate allocates memory of the device. Where reachable is true, the kernels of a library may use it from other devices of the
	// process that can reach it.
	Allocate(bytes uint64, reachable bool) (Memory, error)

	// CopyWithin queues a copy from one place of the device to another.
	CopyWithin(s Stream, to, from uintptr, bytes uint64) error
}

// Sharer is a Launcher whose device can share its memory with other processes of the host. Any thread may call its own methods, also after
// the operation.
type Sharer interface {
	Waiter
	Launcher

	// Reaches returns the identities of the devices whose memory this device can use. It is one of them.
	Reaches() ([]string, error)

	// Share allocates memory of the device that other processes can open, and not this one. Its Release comes after theirs.
	Share(bytes uint64, how Sharing) (Memory, Shared, error)

	// OpenShared opens what another process shares.
	OpenShared(s Shared, how Sharing) (Memory, error)

	// Register makes host memory known to all devices of the process: whole pages, which may be shared with other processes. It stays so
	// until the process ends, because to end it waits for all devices.
	Register(memory []byte) error

	// AddressOf returns the address of registered memory for the device.
	AddressOf(memory []byte) (uintptr, error)

	// Signal queues a write of a word of registered memory. Whoever sees the value sees what is in front of it in the stream.
	Signal(s Stream, at uintptr, value uint32) error

	// Await makes a stream wait until a word of registered memory is at least value, as Waiter.WaitValue does.
	Await(s Stream, at uintptr, value uint32) error
}

// Capturer is a Launcher whose streams can be captured into graphs. Any thread may call its own methods.
type Capturer interface {
	Launcher

	// CaptureOf returns the number of the capture that a stream is a part of, which no other capture of the process has; 0: there is
	// none, or the device has given it up.
	CaptureOf(s Stream) (uint64, error)

	// Relaxed calls f, in which the thread may make calls that captures forbid: allocations. They are no part of a capture.
	Relaxed(f func() error) error

	// NewMark makes a mark.
	NewMark() (Mark, error)

	// NewGraphCount makes a count of graphs.
	NewGraphCount() GraphCount
}

// GraphCount counts graphs. Any thread may call it.
type GraphCount interface {
	// Add counts the graph that the capture of a stream makes, until it and what was made of it are destroyed and none of its launches is
	// under way, or the capture comes to nothing. After an error the graph is not counted: the driver does not tell when graphs end.
	Add(s Stream) error

	// Live returns how many of the graphs are left. The driver says a little later that one has gone.
	Live() int
}

// Mark is a place in a capture.
type Mark interface {
	// Set puts the mark behind what a stream holds now.
	Set(s Stream) error

	// Follow makes a stream of the same capture wait for the mark.
	Follow(s Stream) error
}

// Sharing is a way in which processes share memory of a device.
type Sharing string

// The ways.
const (
	ByHandle Sharing = "handle" // a name that the driver knows in all processes of a PID namespace
	ByFile   Sharing = "file"   // an open file, whose descriptor is handed over
)

// Shared names memory of a device for other processes.
type Shared struct {
	Handle []byte `json:"handle,omitempty"` // ByHandle
	Offset uint64 `json:"offset,omitempty"` // of the memory in what the handle names
	Bytes  uint64 `json:"bytes,omitempty"`  // ByFile
	File   int    `json:"-"`                // ByFile: a descriptor of this process, which the caller closes
}

// Within is Launcher.Current for a runtime whose do makes the device current, calls a function and says what its error is of. The error
// of f is returned as it is.
func Within(do func(what string, f func() error) error, f func() error) error {
	var own error
	if err := do("cannot make the device current", func() error { own = f(); return nil }); err != nil {
		return err
	}
	return own
}

// Memory is memory of a device.
type Memory interface {
	Address() uintptr
	// Release gives the memory back, and may wait for the device. Any goroutine may call it. Requires: no queued command uses the
	// memory.
	Release()
}
