package staged

import (
	"errors"
	"slices"

	"sagecomm/internal/device"
)

// mostQueued is how many commands of operations that have not ended a stream has at most. A stream of an NVIDIA GPU holds about a thousand
// commands that have not run; when it is full, the driver blocks the thread that queues another one. A framework queues some of its own in
// these streams, which are not all counted: events of futures and of an allocator (docs/devices.md, Limits).
const mostQueued = 600

// framing is how many commands an operation has in each stream at most beside those of its groups: events by which streams are ordered.
const framing = 3

// The sides of an operation, as indices.
const (
	sideIn = iota
	sideOut
	sides
)

// streams are the two streams in which operations of an engine on a device are queued. A copy out of the device never waits for one into it.
// When one is full, others take its place: for operations it is as if streams had no end.
type streams struct {
	in, out  device.Stream
	role     device.Role // of out; Inputs: there is no out
	under    []part      // operations that may have commands in the streams
	commands [sides]int  // of these, in in and in out
	beside   bool        // in waits for another stream, behind which no operation has come
}

// part is what an operation has in streams.
type part struct {
	use
	commands [sides]int
	inOnly   bool // it has nothing in out
	later    bool // its commands in out are queued when it has ended: the streams cannot wait
}

// begin notes that the commands of an operation begin to be queued. If there is an error in front of them, the block is settled. waits says
// that the streams can wait for words: else nothing waits in out.
func (s *streams) begin(memory *block, l *layout, waits bool) {
	memory.inputs.Store(l.in.units)
	if l.sends {
		memory.unawaited.Store(true)
	} else {
		memory.outputs.Store(l.out.units)
	}
	n := [sides]int{framing, framing}
	if l.sends || !waits {
		n[sideOut] = 0
	}
	s.add(part{memory.used(), n, l.sends, !waits && !l.sends})
	s.beside = false
}

func (s *streams) add(p part) {
	s.under = append(s.under, p)
	for side, n := range p.commands {
		s.commands[side] += n
	}
}

// count notes commands of the operation that was added last.
func (s *streams) count(side, n int) {
	s.under[len(s.under)-1].commands[side] += n
	s.commands[side] += n
}

// forget takes out the operations that have no command left in the streams, and reports whether none has. A stream runs its commands in order,
// so what stands in front of a command that has run has run, too, also of an operation that has failed. That says nothing of commands that are
// not queued yet.
// Requires: Pool.mu.
func (s *streams) forget() bool {
	read, ended := false, false // in has come past the operation, and both have
	first := len(s.under)
	for at := len(s.under) - 1; at >= 0; at-- {
		p := s.under[at]
		own := !p.inOnly && p.ended()
		ended = ended || own
		if read = read || ended || p.read(); read {
			s.commands[sideIn] -= p.commands[sideIn]
			p.commands[sideIn] = 0
		}
		if own || ended && !p.later || read && p.inOnly {
			s.commands[sideOut] -= p.commands[sideOut]
			continue
		}
		first--
		s.under[first] = p
	}
	left := copy(s.under, s.under[first:])
	clear(s.under[left:])
	s.under = s.under[:left]
	return left == 0
}

// fits reports whether an operation with so many commands finds room: it does in streams that are empty.
func (p *Pool) fits(s *streams, commands [sides]int) bool {
	fits := func() bool {
		return s.commands[sideIn]+commands[sideIn] <= mostQueued && s.commands[sideOut]+commands[sideOut] <= mostQueued
	}
	if fits() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.forget() || fits() || s.commands == [sides]int{}
}

// commands returns how many commands an operation has in its two streams at most. Where streams cannot wait, the caller of the library queues
// what comes into the stream of the output when the operation has ended, and nothing waits there.
func (l *layout) commands(waits bool) (n [sides]int) {
	n[sideIn] = framing + l.in.commands(l.stride)
	if waits && !l.sends {
		n[sideOut] = framing + l.out.commands(l.stride) + l.out.rows()
	}
	return n
}

// commands returns how many commands the groups of a side are at most. A framework may queue an event for each piece.
func (s *side) commands(stride uint32) int {
	groups := int((s.units + stride - 1) / stride)
	return groups*(ordering+int(s.blocks)) + 2*len(s.pieces)
}

// rows returns how many copies a framework may queue behind those of an output: each piece may stand for a tensor that is not contiguous.
func (s *side) rows() int {
	if !s.copied() {
		return 0
	}
	return len(s.pieces)
}

// orderer orders streams of the library.
type orderer interface {
	// Order makes a stream wait for what another one holds now.
	Order(first, then device.Stream) error
}

// queue is where the commands of one operation go: streams, and others that take their place when they are full.
type queue struct {
	*streams
	order orderer // nil: the runtime has none
	pool  *Pool
	on    place
	spare []*streams
	use   use
	full  bool // there is no room for the operation in the present ones
}

// errNoRoom says that a stream of recvs has no room for a further one.
var errNoRoom = errors.New("internal error: no room for a recv; please report this")

// queueFor returns the queue of an operation, with Engine.issuing held: what it was asked for room for is what it will be queued in. If there
// is no room in the streams, it makes others, without the lock: the device may wait.
func (e *Engine) queueFor(b device.Access, on place, s *streams, memory *block, l *layout) *queue {
	q := &queue{streams: s, pool: e.pool, on: on, use: memory.used()}
	q.order, _ = b.(orderer)
	_, waits := b.(device.Waiter)
	n := l.commands(waits)
	for {
		e.issuing.Lock()
		q.full = !e.pool.fits(s, n)
		role := s.role
		more := n[sideIn]/mostQueued + n[sideOut]/mostQueued
		switch {
		case role == device.Recvs:
			more = 0
		case !waits: // all of it is in one stream
			role, more = device.Inputs, 0
		}
		if q.full && s.role != device.Recvs {
			more++
		}
		if more <= len(q.spare) {
			return q
		}
		e.issuing.Unlock()
		next, _, err := e.pool.takeStreams(b, on, role)
		if err != nil { // the operation goes on in those that are full, and the driver may block this thread
			e.issuing.Lock()
			return q
		}
		q.spare = append(q.spare, next)
	}
}

// queue queues a command in the stream of a side.
func (q *queue) queue(side int, command func(device.Stream) error) error {
	if err := q.makeRoom(side, 1); err != nil {
		return err
	}
	q.count(side, 1)
	if side == sideIn {
		return command(q.in)
	}
	return command(q.out)
}

// makeRoom goes on in other streams if there is no room for more commands in the present ones.
func (q *queue) makeRoom(side, n int) error {
	if (q.full || q.commands[side]+n > mostQueued) && len(q.spare) > 0 {
		return q.proceed()
	}
	return nil
}

// close gives back what the operation did not need.
func (q *queue) close() {
	for _, s := range q.spare {
		q.pool.giveStreams(q.on, s)
	}
}

// proceed puts other streams in the place of the present ones, behind them. The present ones are left to others when all of their operations
// have ended, and this one. The others come behind what the present ones wait for, also where this operation has nothing in them.
// Requires: Engine.issuing, a spare, a command of the operation, a runtime that orders streams.
func (q *queue) proceed() error {
	next := q.spare[0]
	q.spare, q.full = q.spare[1:], false
	defer func() { q.pool.giveStreams(q.on, next) }()
	next.beside = true // until both orders are queued: nobody gets it after an error
	if err := q.order.Order(q.in, next.in); err != nil {
		return err
	}
	if err := q.order.Order(q.out, next.out); err != nil {
		return err
	}
	own := q.under[len(q.under)-1]
	own.commands = [sides]int{framing, framing}
	if own.inOnly {
		own.commands[sideOut] = 0
		if last, ok := q.lastOutput(); ok {
			next.add(part{use: last, commands: [sides]int{sideOut: framing}})
		}
	}
	next.add(own)
	q.beside, next.beside = false, false
	*q.streams, *next = *next, *q.streams
	return nil
}

// lastOutput returns the last operation with commands in out.
func (s *streams) lastOutput() (use, bool) {
	for _, p := range slices.Backward(s.under) {
		if !p.inOnly {
			return p.use, true
		}
	}
	return use{}, false
}

// beginAlone puts an operation behind what the caller's stream holds, in another stream for inputs if the present one is full. It is
// for streams that cannot wait: copies out of the device come behind the caller, and behind another engine's stream, but not behind each other.
// Requires: Engine.issuing, no command of the operation.
func (q *queue) beginAlone(caller device.Ordering, memory *block, l *layout) error {
	if !q.full || len(q.spare) == 0 {
		if err := caller.Fork(q.in); err != nil {
			return err
		}
		q.begin(memory, l, false)
		return nil
	}
	next := q.spare[0]
	q.spare, q.full = q.spare[1:], false
	defer func() { q.pool.giveStreams(q.on, next) }()
	next.beside = true // until there is an operation: nobody gets it after an error
	last := q.use
	if q.order == nil {
		last = q.under[len(q.under)-1].use
	} else if err := q.order.Order(q.in, next.in); err != nil {
		return err
	}
	if err := caller.Fork(next.in); err != nil {
		return err
	}
	q.in, next.in = next.in, q.in
	for at := range q.under {
		q.under[at].commands[sideIn] = 0
	}
	q.commands[sideIn] = 0
	q.begin(memory, l, false)
	next.add(part{use: last, inOnly: true})
	next.beside = false
	return nil
}

// pairs names streams of a device by the role of those for outputs. Those of the role Inputs have none.
type pairs struct {
	place
	role device.Role
}

// takeStreams returns streams of a group that is gone, or makes new ones, and reports whether they were given. Streams that still hold something
// stay where they are: an operation of the group may have failed while its caller's stream was late, and they wait for that stream.
func (p *Pool) takeStreams(rt device.Runtime, of place, role device.Role) (s *streams, given bool, err error) {
	if s = p.givenStreams(of, role); s != nil {
		return s, true, nil
	}
	if role == device.Inputs {
		in, err := rt.NewStream(role)
		return &streams{in: in, role: role}, false, err
	}
	if s, _, err = p.takeStreams(rt, of, device.Inputs); err != nil {
		return nil, false, err
	}
	out, err := rt.NewStream(role)
	if err != nil {
		p.giveStreams(of, s)
		return nil, false, err
	}
	s.out, s.role = out, role
	return s, false, nil
}

// givenStreams takes out streams that others have left, nil if there are none.
func (p *Pool) givenStreams(of place, role device.Role) *streams {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idleStreams(of, role)
}

// idleStreams takes out streams that wait for nothing. A stream that another one may hold up is given to nobody.
// Requires: mu.
func (p *Pool) idleStreams(of place, role device.Role) *streams {
	key := pairs{of, role}
	for i, s := range p.streams[key] {
		if s.idle() {
			p.streams[key] = slices.Delete(p.streams[key], i, i+1)
			return s
		}
	}
	return nil
}

// idle reports whether the streams wait for nothing.
// Requires: Pool.mu.
func (s *streams) idle() bool { return !s.beside && s.forget() }

// passed reports whether streams that are in use wait for nothing now.
// Requires: Engine.issuing.
func (p *Pool) passed(s *streams) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.idle()
}

func (p *Pool) giveStreams(of place, s *streams) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pairs{of, s.role}
	p.streams[key] = append(p.streams[key], s)
}

// claimRecvs takes out idle streams for recvs, or reports that the caller may make some: all groups of the process have no more of them than
// the device has queues for them.
func (p *Pool) claimRecvs(of place, queues int) (s *streams, claimed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.idleStreams(of, device.Recvs); s != nil {
		return s, true
	}
	if p.recvs[of] >= queues {
		return nil, false
	}
	p.recvs[of]++
	return nil, true
}

// makeRecvs makes streams that were claimed. If others have left some meanwhile, these are taken, and count already.
func (p *Pool) makeRecvs(rt device.Runtime, of place) (*streams, error) {
	s, given, err := p.takeStreams(rt, of, device.Recvs)
	if err != nil || given {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.recvs[of]--
	}
	return s, err
}
