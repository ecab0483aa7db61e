// Package vendor is the engine that leaves the collectives of a device lane to the communication library of the device's vendor.
// The library's kernels move the data in a stream of this engine; the runner numbers, compares and records the operations as
// external runs (docs/protocol.md, section 12).
//
// [Engine] knows no vendor: a [Library] is a package beside this one. Averages and factors that a library lacks are its SUM beside kernels
// of the framework (scaling.go). What else it cannot do, and all p2p operations, go through the staged engine in the same order. Start
// reading at Engine.Issue.
package vendor

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Library is a vendor's library that was opened.
type Library interface {
	// Name returns the name of the engine.
	Name() string

	// Vendor returns the name in torch of the devices that the library serves.
	Vendor() string

	// Element returns a type of the library for moving elements of a type, and how many bytes it has.
	Element(t coll.DataType) Element

	// Reduction returns how the library reduces elements, or false if it cannot. The result is the same on all ranks.
	Reduction(op coll.ReduceOp, t coll.DataType) (Reduction, bool)

	// NewID returns a new unique id for the ranks of one communicator. Requires: a device is current.
	NewID() ([]byte, error)

	// Join makes this rank's side of a communicator on the device that is current. It waits for no peer: State reports when the
	// communicator can be used. Its goroutines are those of the group (Group.Go).
	Join(id []byte, size, rank int, g Group) (Communicator, error)
}

// GraphLibrary is a Library whose calls can be made in a stream that is being captured, where the ranks are connected for them.
type GraphLibrary interface {
	Library

	// Capturer returns a device, for calls during captures.
	Capturer(index int) (device.Capturer, error)
}

// Communicator is one rank's side of a communicator. No two methods are called at the same time.
type Communicator interface {
	// State reports whether all that was called has been queued. The error is that of the communicator, which is of no use then.
	State() (queued bool, err error)

	// Do begins to queue calls as one group. State reports when they are queued.
	// Requires: the device of the communicator is current.
	Do(calls []Call, stream uintptr) error

	// Abort ends the kernels of the communicator, and the communicator, also one that has not joined yet. It may wait for the device. It
	// returns false where the library cannot end them: the stream and the buffers may then be in use until the process ends.
	Abort() bool

	// Settled reports, once Abort or Destroy has begun, whether no command comes any more. It may be called beside them.
	Settled() bool

	// Destroy ends the communicator. Requires: its kernels are done.
	Destroy()
}

// Settler is a Communicator whose Abort waits for graphs. So what it still queues is waited for before.
type Settler interface {
	// Settle waits until no command comes any more, as far as that is soon, and Settled reports it then.
	Settle()
}

// Element is a type of the library.
type Element struct {
	Type  int32
	Bytes uint64
}

// Reduction is a reduction of the library.
type Reduction struct {
	Element
	Op     int32
	Factor bool // multiplies inputs by Op.Factor first
}

// CallKind is a function of a library.
type CallKind uint8

// The functions. Counts are those of NCCL: elements of the shorter buffer.
const (
	AllReduce CallKind = iota
	Broadcast
	Reduce
	AllGather
	ReduceScatter
	Send
	Recv
)

// Call is a call of a function of the library.
type Call struct {
	Kind     CallKind
	From, To uintptr
	Count    uint64
	Reduction
	Scale float64 // Op.Factor, where Reduction.Factor is set
	Peer  int     // root, or peer of a send or recv
}
