package verify

import (
	"fmt"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// step carries out the next step of a rank if it may run.
func (r *sendRecvRun) step(a *actor) (moved bool, err error) {
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
		if bytes := a.plan.Moved(s, uint64(k), r.call.Lengths); !s.Idle(uint64(k), bytes) {
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

// do carries out a step of that many bytes whose sends have been taken. It reports whether the step's channel was ready.
func (r *sendRecvRun) do(a *actor, s *plan.Step, k int64, bytes uint64) (moved bool, err error) {
	switch s.Op {
	case plan.Send:
		return r.send(a, s, k, bytes)
	case plan.Recv, plan.RecvReduce:
		return r.recv(a, s, k, bytes)
	}
	if s.Op == plan.Copy && r.ontoItself(a, s, k) {
		return true, nil
	}
	if r.message, err = r.read(r.message[:0], a, s.From, k); err != nil {
		return false, err
	}
	if s.Op == plan.Reduce {
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

// ontoItself reports whether a copy is in place.
func (r *sendRecvRun) ontoItself(a *actor, s *plan.Step, k int64) bool {
	r.places = r.extents(r.places[:0], a, s.From, k)
	from := len(r.places)
	r.places = r.extents(r.places, a, s.To, k)
	return slices.Equal(r.places[:from], r.places[from:])
}

// send puts a message into its channel, if that has room.
func (r *sendRecvRun) send(a *actor, s *plan.Step, k int64, bytes uint64) (moved bool, err error) {
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
func (r *sendRecvRun) recv(a *actor, s *plan.Step, k int64, bytes uint64) (moved bool, err error) {
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
	if s.Op == plan.RecvReduce {
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
	if err = r.write(a, s.To, k, m.content); err != nil || s.Op == plan.Recv {
		return true, err
	}
	return true, r.streams(a, s, k)
}

// streams returns an error if a step cannot be carried out byte by byte, as programs do; this checker reads all bytes
// and then writes all. From and To must have the same length, and where they share memory they must be the same bytes.
func (r *sendRecvRun) streams(a *actor, s *plan.Step, k int64) error {
	if !sameUnits(&a.plan, s.From, &a.plan, s.To, uint64(k), r.call.Lengths) {
		return fmt.Errorf("reads %d bytes and writes %d, or blocks of other lengths",
			a.plan.Bytes(s.From, uint64(k), r.call.Lengths), a.plan.Bytes(s.To, uint64(k), r.call.Lengths))
	}
	r.places = r.extents(r.places[:0], a, s.From, k)
	from := len(r.places)
	r.places = r.extents(r.places, a, s.To, k)
	read := uint64(0)
	for _, f := range r.places[:from] {
		written := uint64(0)
		for _, t := range r.places[from:] {
			if f.unitMemory == t.unitMemory && f.lo < t.hi && t.lo < f.hi && read+t.lo != written+f.lo {
				return fmt.Errorf("reads what it writes elsewhere")
			}
			written += t.hi - t.lo
		}
		read += f.hi - f.lo
	}
	return nil
}

// combine puts the reductions of two lists of values into a third list, which may be one of the two.
func (r *sendRecvRun) combine(out, left, right []unitValue) (err error) {
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
