package staged

import (
	"slices"

	"sagecomm/internal/device"
)

// mostQueued is how many commands of operations that have not ended a stream has at most. A stream of an NVIDIA GPU holds about a thousand
// commands that have not run; when it is full, the driver blocks the thread that queues another one. A framework queues some of its own in
// these streams: events of futures and of an allocator, copies of rows that are not contiguous.
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
// When one is full, two others take their place, behind them: for operations it is as if streams had no end.
type streams struct {
	in, out  device.Stream
	role     device.Role // of out
	under    []part      // operations that may have commands in the streams
	commands [sides]int  // of these, in in and in out
	beside   bool        // in waits for another stream, behind which no operation has come
}

// part is what an operation has in streams.
type part struct {
	use
	commands [sides]int
}

// begin notes that the commands of an operation begin to be queued. If there is an error in front of them, the block is settled.
func (s *streams) begin(memory *block, l *layout) {
	memory.inputs.Store(l.in.units)
	if l.sends {
		memory.unawaited.Store(true)
	} else {
		memory.outputs.Store(l.out.units)
	}
	s.add(memory.used(), [sides]int{framing, framing})
	s.beside = false
}

func (s *streams) add(of use, commands [sides]int) {
	s.under = append(s.under, part{of, commands})
	for side, n := range commands {
		s.commands[side] += n
	}
}

// count notes a command of the operation that was added last.
func (s *streams) count(side int) {
	s.under[len(s.under)-1].commands[side]++
	s.commands[side]++
}

// forget takes out the operations that have ended, and reports whether none is left.
// Requires: Pool.mu.
func (s *streams) forget() bool {
	left := s.under[:0]
	s.commands = [sides]int{}
	for _, p := range s.under {
		if !p.ended() {
			left = append(left, p)
			for side, n := range p.commands {
				s.commands[side] += n
			}
		}
	}
	clear(s.under[len(left):])
	s.under = left
	return len(left) == 0
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
	return s.forget() || fits()
}

// commands returns how many commands an operation has in its two streams at most. A framework may queue an event for each piece.
func (l *layout) commands() (n [sides]int) {
	n[sideIn] = framing + l.in.commands(l.stride)
	if n[sideOut] = framing; !l.sends {
		n[sideOut] += l.out.commands(l.stride)
	}
	return n
}

func (s *side) commands(stride uint32) int {
	groups := int((s.units + stride - 1) / stride)
	return groups*(ordering+int(s.blocks)) + 2*len(s.pieces)
}

// queue is where the commands of one operation go: streams, and others that take their place when they are full.
type queue struct {
	*streams
	rt    device.Waiter
	pool  *Pool
	on    place
	spare []*streams
	use   use
	full  bool // there is no room for the operation in the present ones
}

// queue queues a command in the stream of a side.
func (q *queue) queue(side int, command func(device.Stream) error) error {
	if (q.full || q.commands[side] >= mostQueued) && len(q.spare) > 0 {
		if err := q.proceed(); err != nil {
			return err
		}
	}
	q.count(side)
	if side == sideIn {
		return command(q.in)
	}
	return command(q.out)
}

// close gives back what the operation did not need.
func (q *queue) close() {
	for _, s := range q.spare {
		q.pool.giveStreams(q.on, s)
	}
}

// proceed puts other streams in the place of the present ones, behind them. The present ones are left to others when all of their operations
// have ended, and this one, which comes behind what they wait for.
// Requires: Engine.issuing, a spare, a command of the operation.
func (q *queue) proceed() error {
	next := q.spare[0]
	q.spare, q.full = q.spare[1:], false
	defer func() { q.pool.giveStreams(q.on, next) }()
	next.beside = true // until both orders are queued: nobody gets it after an error
	if err := q.rt.Order(q.in, next.in); err != nil {
		return err
	}
	if err := q.rt.Order(q.out, next.out); err != nil {
		return err
	}
	q.add(q.use, [sides]int{})
	next.add(q.use, [sides]int{framing, framing})
	q.beside, next.beside = false, false
	*q.streams, *next = *next, *q.streams
	return nil
}

// pairs names streams of a device by the role of those for outputs.
type pairs struct {
	place
	role device.Role
}

// takeStreams returns streams of a group that is gone, or makes new ones. Streams that still hold something stay where they are: an
// operation of the group may have failed while its caller's stream was late, and they wait for that stream.
func (p *Pool) takeStreams(rt device.Runtime, of place, role device.Role) (*streams, error) {
	s, in, has := p.givenStreams(of, role)
	if s != nil {
		return s, nil
	}
	var err error
	if !has {
		if in, err = rt.NewStream(device.Inputs); err != nil {
			return nil, err
		}
	}
	out, err := rt.NewStream(role)
	if err != nil {
		p.mu.Lock()
		p.single[of] = append(p.single[of], in)
		p.mu.Unlock()
		return nil, err
	}
	return &streams{in: in, out: out, role: role}, nil
}

// givenStreams takes out streams of a group that is gone, or a stream for inputs if there is one without a pair.
func (p *Pool) givenStreams(of place, role device.Role) (s *streams, in device.Stream, has bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.idleStreams(of, role); s != nil {
		return s, in, false
	}
	if n := len(p.single[of]); n > 0 {
		in, has = p.single[of][n-1], true
		p.single[of] = p.single[of][:n-1]
	}
	return nil, in, has
}

// idleStreams takes out streams that wait for nothing. A stream that another one may hold up is given to nobody.
// Requires: mu.
func (p *Pool) idleStreams(of place, role device.Role) *streams {
	key := pairs{of, role}
	for i, s := range p.streams[key] {
		if !s.beside && s.forget() {
			p.streams[key] = slices.Delete(p.streams[key], i, i+1)
			return s
		}
	}
	return nil
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

// makeRecvs makes streams that were claimed.
func (p *Pool) makeRecvs(rt device.Runtime, of place) (*streams, error) {
	s, err := p.takeStreams(rt, of, device.Recvs)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.recvs[of]--
	}
	return s, err
}
