package vendor

import (
	"fmt"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Method is how an engine carries out operations. [Calls] is that of vendors' libraries; package cuda has one of its own.
type Method interface {
	// Name returns the name of the engine.
	Name() string

	// Vendor returns the name in torch of the devices that the engine serves.
	Vendor() string

	// Supports reports whether such operations are carried out. The result is the same on all ranks.
	Supports(op coll.Op) bool

	// Seat completes this rank's seat, or returns why the rank cannot have one. Requires: the device is current.
	Seat(s *Seat, on coll.Device) error

	// Compare returns for each rank why it cannot be in a communicator with the others, "" if it can. All seats have no Why. The
	// result is the same on all ranks.
	Compare(seats []Seat) []string

	// Join makes this rank's side of a communicator. All ranks call it together and make the same exchanges. It returns why this
	// rank cannot join, or an error that ends the join of all ranks. Member.State reports when the communicator can be used.
	Join(j Joining) (m Member, why, err error)
}

// Early is a Method with calls in Join that wait for the device. Where streams wait for peers by then, it could wait for ever. So they come
// before the first p2p operation of a group on the device, for which streams wait, also if the group uses the method only where the ranks do
// without another one.
type Early interface {
	// Early makes these calls, on any thread, unless they were made. Those that fail are made again in Join.
	Early(on coll.Device)
}

// Joining is what a rank needs to join a communicator.
type Joining struct {
	Group
	Device  coll.Device
	Current func(f func() error) error // device.Launcher.Current
	Seats   []Seat
}

// Member is one rank's side of a communicator. No two methods are called at the same time, except for Release, Void and Settled.
type Member interface {
	// State reports whether all that Do and Capture have begun to queue has been queued. The error is that of the communicator, which
	// is of no use then.
	State() (queued bool, err error)

	// Do begins to queue an operation. State reports when it is queued.
	// Requires: the device of the communicator is current.
	Do(op coll.Op, b Buffers, stream uintptr) error

	// Void returns a word that is not 0 when what the stream has done since may be void, although the group goes on; nil if there is
	// none: then an operation that the host sees behind the failure of the group has failed. It stays valid until Free.
	Void() *uint32

	// Release begins to end what the stream waits for, until idle returns true. It makes no device call and takes no lock, because a
	// call of Do may be blocked.
	Release(idle func() bool)

	// Abort ends what is queued, and the communicator. It comes after Release, and may wait for the device. It returns false where
	// that cannot be ended: the stream and the buffers may then be in use until the process ends.
	Abort() bool

	// Settled reports, once Abort or Destroy has begun, whether no command comes any more: a library may be in a call, or have a thread, that
	// still queues some.
	Settled() bool

	// Destroy ends the communicator. Requires: what it has queued is done.
	Destroy()

	// Free gives memory back that peers may still have used. It comes after Abort or Destroy, and may wait for peers for
	// as long as they live. behind calls a function on a thread that may make calls of the device.
	Free(behind func(f func()))
}

// Bounded is a Member that carries out operations up to some length only.
type Bounded interface {
	Member

	// Bound returns why an operation is too long, or nil. It comes before the operation has a number, on any thread.
	Bound(op coll.Op) error
}

// Capturer is a Member whose operations graphs can hold.
type Capturer interface {
	Member

	// Device returns the device, for calls during captures.
	Device() device.Capturer

	// Capture begins to add the commands of an operation to the capture of which the stream is a part. State reports when they are.
	// number is that of the capture, whose operations come one after the other. begun tells whether a graph may have a part of the
	// commands after an error.
	// Requires: the device of the communicator is current.
	Capture(op coll.Op, b Buffers, stream device.Stream, number uint64) (begun bool, err error)
}

// Buffers are the contiguous buffers of an operation on the device, 0 where it has none.
type Buffers struct {
	In, Out uintptr
	Scratch uintptr // some bytes of a barrier
}

// Calls is the Method of a vendor's library.
func Calls(l Library) Method { return calls{l} }

type calls struct{ Library }

// Supports implements Method.
func (c calls) Supports(op coll.Op) bool { return supports(c.Library, op) }

// Seat implements Method.
func (c calls) Seat(*Seat, coll.Device) error { return nil }

// Compare implements Method. A library takes one rank on each device.
func (c calls) Compare(seats []Seat) []string {
	reasons := make([]string, len(seats))
	first := map[string]int{}
	for rank, s := range seats {
		if other, taken := first[s.Device]; taken {
			reasons[rank] = fmt.Sprintf("%s is the device of rank %d too", s.Place, other)
		} else {
			first[s.Device] = rank
		}
	}
	return reasons
}

// Join implements Method.
func (c calls) Join(j Joining) (m Member, why, err error) {
	var id []byte
	if j.Rank == 0 {
		why = j.Current(func() (err error) {
			id, err = c.NewID()
			return err
		})
	}
	all, err := j.Unique(id)
	if err != nil || why != nil || len(all[0]) == 0 {
		return nil, why, err
	}
	caller := caller{library: c.Library, rank: j.Rank, size: j.Size}
	why = j.Current(func() (err error) {
		caller.Communicator, err = c.Library.Join(all[0], j.Size, j.Rank, j.Group)
		return err
	})
	if why != nil {
		return nil, reported{why}, nil
	}
	if graphs, ok := c.Library.(GraphLibrary); ok {
		return newGraphCaller(caller, j.Device.Index, graphs, j.Group), nil, nil
	}
	return &caller, nil, nil
}

// caller is a Member that makes calls of a library.
type caller struct {
	Communicator
	library    Library
	rank, size int
}

// Do implements Member.
func (c *caller) Do(op coll.Op, b Buffers, stream uintptr) error {
	list := callsFor(c.library, op, c.rank, c.size, b)
	if len(list) == 0 {
		return nil
	}
	return c.Communicator.Do(list, stream)
}

// Void implements Member. A kernel that was cut may end those of peers, and nothing tells them: such an operation counts as lost as soon
// as a failure is declared.
func (c *caller) Void() *uint32 { return nil }

// Release implements Member. Libraries end their kernels in Abort.
func (c *caller) Release(func() bool) {}

// Free implements Member.
func (c *caller) Free(func(f func())) {}
