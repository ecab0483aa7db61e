package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// attachBound bounds how long a rank waits for the inbox of a peer, which has made it.
const attachBound = 10 * time.Second

var errReleased = errors.New("the communicator is being ended")

// driver is what the engine needs of a device.
type driver interface {
	device.Sharer
	device.Reducer
	device.Capturer
}

// member implements vendor.Member.
type member struct {
	d          driver
	guard      func(f func()) // vendor.Group.Guard
	hasGraphs  func() bool    // vendor.Group.HasGraphs
	rank, size int
	methods    []shmem.Method
	slots      shared // of this rank
	own        inbox
	lodging    lodging // of the own inbox
	peers      []peer  // by rank; of this rank it has the slots alone

	lowering *lowering // used by Do
	captures captures  // used by Capture

	// released is set before the waits of the stream are ended. Each command of Do that is queued later goes through.
	released atomic.Bool
	newest   [words][]atomic.Uint32 // by word and peer: at least what the stream waits for

	releasing sync.WaitGroup
	stuck     atomic.Bool // the stream has not ended
}

// peer is what this process has of a rank.
type peer struct {
	process  shmem.Descriptor
	imported device.Memory // nil: not opened by a file, or this rank's
	handled  device.Memory // nil: not opened by a handle; the process keeps it
	slots    uintptr       // address of the slots
	inbox    inbox
}

var (
	_ vendor.Capturer = (*member)(nil)
	_ vendor.Bounded  = (*member)(nil)
)

// newMember makes the inbox of a rank.
func newMember(d driver, g vendor.Group, methods []shmem.Method, choices *algo.DeviceChoices) (m *member, o offer, err error) {
	rank, size := g.Rank, g.Size
	m = &member{d: d, guard: g.Guard, hasGraphs: g.HasGraphs, rank: rank, size: size, methods: methods, peers: make([]peer, size), lowering: newLowering(rank, size, choices),
		captures: captures{planner: newCapturing(rank, size, choices), released: make([]atomic.Bool, size)}}
	for w := range m.newest {
		m.newest[w] = make([]atomic.Uint32, size)
	}
	if err := d.LoadKernels(); err != nil { // it may wait for the device, which a later call must not
		return nil, o, err
	}
	if m.own, m.lodging, o.Inbox, err = makeInbox(d, size, methods); err != nil {
		return nil, o, err
	}
	o.Place = m.lodging.place
	return m, o, nil
}

// connect opens the inboxes of all peers.
func (m *member) connect(offers []offer) error {
	ctx, cancel := context.WithTimeout(context.Background(), attachBound)
	defer cancel()
	for rank, o := range offers {
		if rank == m.rank {
			continue
		}
		p := &m.peers[rank]
		p.process = o.Inbox
		var err error
		if p.inbox, err = openInbox(ctx, m.d, o.Inbox, o.Place, m.size, m.methods); err != nil {
			return fmt.Errorf("memory of rank %d (pid %d): %w", rank, o.Inbox.PID, err)
		}
	}
	return nil
}

// State implements vendor.Member. All is queued when Do returns.
func (m *member) State() (bool, error) {
	m.watchPeers()
	if who := atomic.LoadUint32(m.own.void()); who != 0 {
		return true, fmt.Errorf("rank %d has ended operations that were under way", who-1)
	}
	return true, nil
}

// Void implements vendor.Member.
func (m *member) Void() *uint32 { return m.own.void() }

// Bound implements vendor.Bounded.
func (m *member) Bound(op coll.Op) error { return m.lowering.bound(op) }

// Do implements vendor.Member.
func (m *member) Do(op coll.Op, b vendor.Buffers, stream uintptr) error {
	if m.released.Load() {
		return errReleased
	}
	commands := m.lowering.lower(op)
	for w := range m.newest { // before the first wait is queued
		for peer := range m.newest[w] {
			m.newest[w][peer].Store(m.lowering.received.value(word(w), peer, mostChunks))
		}
	}
	q := queue{m, op, b, device.Stream{Handle: stream}}
	return q.putAll(commands)
}

// queue queues the commands of an operation.
type queue struct {
	m      *member
	op     coll.Op
	b      vendor.Buffers
	stream device.Stream
}

func (q *queue) putAll(commands []command) error {
	if q.op.Kind == coll.Broadcast && q.op.Root == q.m.rank {
		if err := q.copy(q.b.Out, q.b.In, q.op.Out); err != nil {
			return err
		}
	}
	for _, c := range commands {
		if err := q.put(c); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) put(c command) error {
	switch c.verb {
	case await:
		return q.m.d.Await(q.stream, q.m.own.at(c.word, c.peer), c.value)
	case signal:
		return q.m.d.Signal(q.stream, q.m.peers[c.peer].inbox.at(c.word, q.m.rank), c.value)
	case look, take:
		own := q.m.own.at(tokenOf(c.word, c.slot), c.peer)
		if err := q.m.d.Await(q.stream, own, 1); err != nil || c.verb == look {
			return err
		}
		return q.m.d.Signal(q.stream, own, 0)
	case give:
		return q.m.d.Signal(q.stream, q.m.peers[c.peer].inbox.at(tokenOf(c.word, c.slot), q.m.rank), 1)
	}
	if c.move.Reduce {
		return q.reduce(c.move)
	}
	from, to := c.move.From[0], c.move.To[0]
	if from.Space == plan.Input && q.premultiplied() {
		return q.scale(q.address(to), q.address(from), to.Len)
	}
	return q.copy(q.address(to), q.address(from), to.Len)
}

// premultiplied reports whether a rank multiplies its contribution.
func (q *queue) premultiplied() bool { return q.op.Kind.Reduces() && q.op.Reduce == coll.PremulSum }

// scale multiplies a part of the input by this rank's factor.
func (q *queue) scale(to, from uintptr, bytes uint64) error {
	return q.combine(coll.PremulSum, q.op.Factor, []uintptr{from}, to, bytes)
}

// reduce combines the contributions of all ranks. Those in slots are multiplied already.
func (q *queue) reduce(m plan.Move) error {
	result, bytes := q.address(m.To[0]), m.To[0].Len
	list := make([]uintptr, len(m.From))
	for i, from := range m.From {
		list[i] = q.address(from)
		if from.Space == plan.Input && q.premultiplied() {
			if err := q.scale(result, list[i], bytes); err != nil {
				return err
			}
			list[i] = result
		}
	}
	how, operand := q.op.Reduce, float64(q.m.size)
	if how == coll.PremulSum {
		how = coll.Sum
	}
	if err := q.combine(how, operand, list, result, bytes); err != nil {
		return err
	}
	for _, to := range m.To[1:] {
		if err := q.copy(q.address(to), result, bytes); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) combine(how coll.ReduceOp, operand float64, from []uintptr, to uintptr, bytes uint64) error {
	return q.m.d.Reduce(q.stream, device.Reduction{Type: q.op.Type, Op: how, Inputs: from, Output: to,
		Count: bytes / uint64(q.op.Type.Size()), Operand: operand})
}

func (q *queue) copy(to, from uintptr, bytes uint64) error {
	if to == from || bytes == 0 {
		return nil
	}
	return q.m.d.CopyWithin(q.stream, to, from, bytes)
}

// address returns where a range begins.
func (q *queue) address(r plan.Range) uintptr {
	switch r.Space {
	case plan.Input:
		return q.b.In + uintptr(r.Off)
	case plan.Output:
		return q.b.Out + uintptr(r.Off)
	}
	return q.m.peers[r.Rank].slots + uintptr(r.Off)
}
