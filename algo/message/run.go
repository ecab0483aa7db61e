// The checker's machine: the steps of all ranks on symbolic memory and bounded channels.

package message

import (
	"cmp"
	"fmt"
	"slices"

	"sagecomm/internal/coll"
)

// channel is what lies between two ranks.
type channel struct {
	queue      []packet
	put, taken int
	known      int // how many of those taken the sender has waited for
}

// packet is a message under way.
type packet struct {
	content []value
	bytes   uint64
	met     ranks // whom the sender has heard of
	round   int   // in which it is sent
	sender  *actor
	step    int
	chunk   int64
}

func (m packet) String() string {
	return fmt.Sprintf("the message of rank %d, chunk %d, step %d to rank %d",
		m.sender.plan.Rank, m.chunk, m.step, m.sender.plan.Steps[m.step].Peer)
}

// posted is a send of units of a memory.
type posted struct {
	lo, hi  uint64
	step    int
	chunk   int64
	channel *channel
	number  int // of the message in its channel, from 1
}

// actor is one rank in the run.
type actor struct {
	plan          Plan
	channels      []*channel // by step
	position      int64
	next          int // step at this position
	last          int64
	lag, sets     int64
	done          bool
	buffers       [Scratch + 1][]*memory // by block; by set and cell
	sent          []int32                // by chunk and step: the number of the message in its channel, from 1
	left          int                    // of sent: those before are known to have been taken in the end
	fromScratch   []int                  // steps that send out of scratch memory
	met           ranks
	sending       int // the last round in which it has sent
	taking        int // the last round in which it has taken a message
	outputWritten bool
}

type run struct {
	call     Call
	capacity int
	trees    *trees
	ranks    []*actor

	values   slab[value]
	memories slab[memory]
	packets  slab[packet]
	places   []extent // of the present step
	message  []value  // and what it reads
	other    []value
}

// newRun prepares a call. The trees may be those of other runs of as many ranks.
func newRun(c Call, capacity int, known *trees) *run {
	size := len(c.Plans)
	r := &run{call: c, capacity: capacity, trees: known}
	actors, met, buffers, blocks := make([]actor, size), slab[uint64]{}, slab[*memory]{}, size
	if flat(c.Plans[0].Kind) {
		blocks = 1
	}
	for rank, p := range c.Plans {
		a := &actors[rank]
		*a = actor{plan: p, lag: int64(p.MaxLag()), sets: int64(p.Sets()), met: met.take((size + 63) / 64)}
		chunks := p.Chunks(c.Lengths)
		a.last = int64(chunks) + a.lag
		a.met.add(rank)
		a.buffers = [...][]*memory{buffers.take(blocks), buffers.take(blocks), buffers.take(p.Sets() * p.Cells)}
		a.sent = make([]int32, int(chunks)*len(p.Steps))
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Op == Send && fromScratch(s) {
				a.fromScratch = append(a.fromScratch, i)
			}
		}
		r.ranks = append(r.ranks, a)
		r.fill(a)
	}
	r.join()
	return r
}

// join gives the message steps of all ranks their channels.
func (r *run) join() {
	size, numbers := len(r.ranks), 1
	for _, a := range r.ranks {
		for i := range a.plan.Steps {
			numbers = max(numbers, int(a.plan.Steps[i].Channel)+1)
		}
	}
	known, channels := make([]*channel, size*size*numbers), slab[channel]{} // by sender, receiver and number
	for _, a := range r.ranks {
		a.channels = make([]*channel, len(a.plan.Steps))
		for i := range a.plan.Steps {
			s := &a.plan.Steps[i]
			if s.Op > RecvReduce {
				continue
			}
			from, to := a.plan.Rank, s.Peer
			if s.Op != Send {
				from, to = to, from
			}
			at := &known[(from*size+to)*numbers+int(s.Channel)]
			if *at == nil {
				*at = &channels.take(1)[0]
			}
			a.channels[i] = *at
		}
	}
}

// finish runs until nothing more can run and looks at what is left.
func (r *run) finish() error {
	for progress := true; progress; {
		progress = false
		for _, a := range r.ranks {
			for !a.done {
				moved, err := r.step(a)
				if err != nil {
					return err
				}
				if !moved {
					break
				}
				progress = true
			}
		}
	}
	// The rank that has come least far is named first: as a rule the others wait for it.
	var stuck []*actor
	for _, a := range r.ranks {
		if !a.done {
			stuck = append(stuck, a)
		}
	}
	slices.SortStableFunc(stuck, func(a, b *actor) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.next, b.next))
	})
	text := ""
	for _, a := range stuck[:min(len(stuck), 3)] {
		text += fmt.Sprintf("; %s", r.waiting(a))
	}
	if len(stuck) > 3 {
		text += fmt.Sprintf("; and %d ranks more", len(stuck)-3)
	}
	left := r.left()
	switch {
	case len(stuck) > 0:
		return fmt.Errorf("deadlock: %s%s", text[2:], left)
	case left != "":
		return fmt.Errorf("%s", left[2:])
	}
	return nil
}

// left names the first message, by sender and step, that is still in a channel.
func (r *run) left() string {
	for _, a := range r.ranks {
		for _, c := range a.channels {
			if c != nil && c.put > c.taken {
				return fmt.Sprintf("; nobody has taken %v", c.queue[0])
			}
		}
	}
	return ""
}

// chunk is the chunk that a step works on at the present position.
func (a *actor) chunk() int64 { return a.position - int64(a.plan.Steps[a.next].Lag) }

// name says where a rank is: what every error begins with.
func (a *actor) name() string {
	if a.next >= len(a.plan.Steps) || a.position >= a.last {
		return fmt.Sprintf("rank %d, at the end", a.plan.Rank)
	}
	return fmt.Sprintf("rank %d, chunk %d, step %d (%v)", a.plan.Rank, a.chunk(), a.next, a.plan.Steps[a.next].Op)
}

// awaits visits the sends that a rank has to wait for here, as long as visit says so: those that the step is after, at
// the beginning of a position those out of scratch cells that are about to be used again, at the end all of them.
func (a *actor) awaits(visit func(step int, chunk int64) bool) bool {
	steps := len(a.plan.Steps)
	switch {
	case a.position >= a.last:
		for ; a.left < len(a.sent); a.left++ { // counters only grow: what was over once remains so
			if !visit(a.left%steps, int64(a.left/steps)) {
				return false
			}
		}
		return true
	case a.next < steps:
		for _, j := range a.plan.Steps[a.next].After {
			if !visit(j, a.chunk()) {
				return false
			}
		}
	}
	if again := a.position - a.sets; a.next == 0 && again >= 0 {
		for _, j := range a.fromScratch {
			if !visit(j, again) {
				return false
			}
		}
	}
	return true
}

// number is which message of its channel a send has made, from 1; 0 if it has made none.
func (a *actor) number(step int, chunk int64) int {
	if at := chunk*int64(len(a.plan.Steps)) + int64(step); chunk >= 0 && at < int64(len(a.sent)) {
		return int(a.sent[at])
	}
	return 0
}

// free says whether all that the rank has to wait for here has been taken. If so, the rank knows it.
func (a *actor) free() bool {
	return a.awaits(func(step int, chunk int64) bool {
		if n := a.number(step, chunk); n > 0 {
			c := a.channels[step]
			if c.taken < n {
				return false
			}
			c.known = max(c.known, n)
		}
		return true
	})
}

// waiting says what a rank that cannot go on waits for.
func (r *run) waiting(a *actor) string {
	text := ""
	taken := a.awaits(func(step int, chunk int64) bool {
		if n := a.number(step, chunk); n == 0 || a.channels[step].taken >= n {
			return true
		}
		text = fmt.Sprintf("%s waits until rank %d has taken the message of chunk %d, step %d",
			a.name(), a.plan.Steps[step].Peer, chunk, step)
		return false
	})
	if !taken {
		return text
	}
	s := a.plan.Steps[a.next]
	if s.Op == Send {
		return fmt.Sprintf("%s waits for room in channel %d to rank %d", a.name(), s.Channel, s.Peer)
	}
	return fmt.Sprintf("%s waits for a message in channel %d from rank %d", a.name(), s.Channel, s.Peer)
}

// step carries out the next step of a rank if it may run.
func (r *run) step(a *actor) (moved bool, err error) {
	if !a.free() {
		return false, nil
	}
	switch {
	case a.position >= a.last:
		a.done = true
		return true, nil
	case a.next >= len(a.plan.Steps):
		a.next = 0
		a.position++
		return true, nil
	}
	s, k := &a.plan.Steps[a.next], a.chunk()
	moved = true
	if k >= 0 && k < a.last-a.lag {
		if bytes := a.plan.moves(s, uint64(k), r.call.Lengths); !s.idle(uint64(k), bytes) {
			moved, err = r.do(a, s, k, bytes)
		}
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", a.name(), err)
	}
	if moved {
		a.next++
	}
	return moved, nil
}

// do carries out a step of so many bytes whose sends have been taken, or says that its channel is not ready.
func (r *run) do(a *actor, s *Step, k int64, bytes uint64) (moved bool, err error) {
	switch s.Op {
	case Send:
		return r.send(a, s, k, bytes)
	case Recv, RecvReduce:
		return r.recv(a, s, k, bytes)
	}
	if s.Op == Copy && r.ontoItself(a, s, k) {
		return true, nil
	}
	if r.message, err = r.read(r.message[:0], a, s.From, k); err != nil {
		return false, err
	}
	if s.Op == Reduce {
		if r.other, err = r.read(r.other[:0], a, s.To, k); err != nil {
			return false, err
		}
		if err = r.combine(r.message, r.other, r.message); err != nil {
			return false, err
		}
	}
	if err = r.write(a, s.To, k, r.message); err != nil {
		return false, err
	}
	return true, r.streams(a, s, k)
}

// ontoItself says whether a copy is in place.
func (r *run) ontoItself(a *actor, s *Step, k int64) bool {
	r.places = r.extents(r.places[:0], a, s.From, k)
	from := len(r.places)
	r.places = r.extents(r.places, a, s.To, k)
	return slices.Equal(r.places[:from], r.places[from:])
}

// send puts a message into its channel, if that has room.
func (r *run) send(a *actor, s *Step, k int64, bytes uint64) (moved bool, err error) {
	c := a.channels[a.next]
	if c.put-c.taken >= r.capacity {
		return false, nil
	}
	m := packet{bytes: bytes, round: max(a.sending, a.taking) + 1, sender: a, step: a.next, chunk: k}
	if a.plan.Kind == coll.Barrier {
		m.met = slices.Clone(a.met)
	}
	if m.content, err = r.read(r.values.take(int(units(bytes)) + len(s.From))[:0], a, s.From, k); err != nil {
		return false, err
	}
	if c.queue == nil {
		c.queue = r.packets.take(1)[:0]
	}
	c.queue = append(c.queue, m)
	c.put++
	a.sending = m.round
	a.sent[k*int64(len(a.plan.Steps))+int64(a.next)] = int32(c.put)
	for _, e := range r.places {
		e.posted = append(e.posted, posted{e.lo, e.hi, a.next, k, c, c.put})
	}
	return true, nil
}

// recv takes the next message out of its channel, if there is one.
func (r *run) recv(a *actor, s *Step, k int64, bytes uint64) (moved bool, err error) {
	c := a.channels[a.next]
	if c.put == c.taken {
		return false, nil
	}
	m := c.queue[0]
	if bytes != m.bytes {
		return false, fmt.Errorf("expects %d bytes, %v has %d", bytes, m, m.bytes)
	}
	sender, from := &m.sender.plan, m.sender.plan.Steps[m.step].From
	if !sameUnits(&a.plan, s.To, sender, from, uint64(k), r.call.Lengths) ||
		longest(&a.plan, s.To, r.call.Lengths) != longest(sender, from, r.call.Lengths) {
		return false, fmt.Errorf("takes the blocks of %v for others, of other lengths", m)
	}
	c.queue = slices.Delete(c.queue, 0, 1)
	c.taken++
	a.met.join(m.met)
	a.taking = max(a.taking+1, m.round)
	if s.Op == RecvReduce {
		if r.other, err = r.read(r.other[:0], a, s.From, k); err != nil {
			return false, err
		}
		if s.MessageFirst {
			err = r.combine(m.content, m.content, r.other)
		} else {
			err = r.combine(m.content, r.other, m.content)
		}
		if err != nil {
			return false, err
		}
	}
	if err = r.write(a, s.To, k, m.content); err != nil || s.Op == Recv {
		return true, err
	}
	return true, r.streams(a, s, k)
}

// streams says what is wrong with a step for whoever carries it out byte by byte, where this checker reads all and then
// writes all: From and To must be of the same length, and where they are the same memory at the same place of it.
func (r *run) streams(a *actor, s *Step, k int64) error {
	if !sameUnits(&a.plan, s.From, &a.plan, s.To, uint64(k), r.call.Lengths) {
		return fmt.Errorf("reads %d bytes and writes %d, or blocks of other lengths",
			a.plan.bytes(s.From, uint64(k), r.call.Lengths), a.plan.bytes(s.To, uint64(k), r.call.Lengths))
	}
	r.places = r.extents(r.places[:0], a, s.From, k)
	from := len(r.places)
	r.places = r.extents(r.places, a, s.To, k)
	read := uint64(0)
	for _, f := range r.places[:from] {
		written := uint64(0)
		for _, t := range r.places[from:] {
			if f.memory == t.memory && f.lo < t.hi && t.lo < f.hi && read+t.lo != written+f.lo {
				return fmt.Errorf("reads what it writes elsewhere")
			}
			written += t.hi - t.lo
		}
		read += f.hi - f.lo
	}
	return nil
}

// combine puts the reductions of two lists of values into a third, which may be one of them.
func (r *run) combine(out, left, right []value) (err error) {
	if len(left) != len(right) {
		return fmt.Errorf("reduces %d units with %d", len(left), len(right))
	}
	for i := range left {
		if out[i], err = r.trees.combine(left[i], right[i]); err != nil {
			return err
		}
	}
	return nil
}

// write puts values where they belong, unless a send may still read there.
func (r *run) write(a *actor, to []Region, k int64, values []value) error {
	r.places = r.extents(r.places[:0], a, to, k)
	for _, e := range r.places {
		if p := e.busy(e.lo, e.hi); p != nil {
			return fmt.Errorf("overwrites what the message of chunk %d, step %d to rank %d may still be read from",
				p.chunk, p.step, a.plan.Steps[p.step].Peer)
		}
		if n := e.hi - e.lo; n > uint64(len(values)) {
			return fmt.Errorf("writes %d units more than there are", n-uint64(len(values)))
		}
		copy(e.cells[e.lo:e.hi], values)
		values = values[e.hi-e.lo:]
	}
	if len(values) > 0 {
		return fmt.Errorf("has %d units more than it writes", len(values))
	}
	for _, region := range to {
		a.outputWritten = a.outputWritten || region.Space == Output
	}
	return nil
}

// busy is the first send of some units that the rank has not waited for.
func (m *memory) busy(lo, hi uint64) *posted {
	m.posted = slices.DeleteFunc(m.posted, func(p posted) bool { return p.number <= p.channel.known })
	for i := range m.posted {
		if p := &m.posted[i]; p.lo < hi && lo < p.hi {
			return p
		}
	}
	return nil
}
