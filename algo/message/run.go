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
	return fmt.Sprintf("the message of rank %d, chunk %d, step %d to rank %d", m.sender.plan.Rank, m.chunk, m.step, m.sender.plan.Steps[m.step].Peer)
}

// posted is a send that may still read, as far as its rank knows.
type posted struct {
	step    int
	chunk   int64
	channel *channel
	number  int // of the message in its channel, from 1
	extents []extent
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
	posted        []posted               // in order; some are known to have been taken
	sent          [][]int                // by step and chunk: the number of the message in its channel, from 1
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
	channels map[[3]int]*channel // by sender, receiver and number
}

func newRun(c Call, capacity int) *run {
	size := len(c.Plans)
	r := &run{call: c, capacity: capacity, trees: newTrees(size), channels: map[[3]int]*channel{}}
	for rank, p := range c.Plans {
		a := &actor{plan: p, lag: int64(p.MaxLag()), sets: int64(p.Sets()), met: newRanks(size)}
		a.last = int64(p.Chunks(c.Lengths)) + a.lag
		a.met.add(rank)
		a.buffers = [...][]*memory{make([]*memory, size), make([]*memory, size), make([]*memory, p.Sets()*p.Cells)}
		a.channels = make([]*channel, 0, len(p.Steps))
		a.sent = make([][]int, p.Chunks(c.Lengths))
		for k := range a.sent {
			a.sent[k] = make([]int, len(p.Steps))
		}
		for i, s := range p.Steps {
			if s.Op == Send && slices.ContainsFunc(s.From, func(r Region) bool { return r.Space == Scratch }) {
				a.fromScratch = append(a.fromScratch, i)
			}
			key := [3]int{rank, s.Peer, int(s.Channel)}
			if s.Op != Send {
				key[0], key[1] = key[1], key[0]
			}
			if s.Op <= RecvReduce && r.channels[key] == nil {
				r.channels[key] = &channel{}
			}
			a.channels = append(a.channels, r.channels[key])
		}
		r.ranks = append(r.ranks, a)
		r.fill(a)
	}
	return r
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

// left names the first message, by sender and receiver, that is still in a channel.
func (r *run) left() string {
	for from := range r.ranks {
		for _, c := range r.ranks[from].channels {
			if c != nil && len(c.queue) > 0 && c.put > c.taken {
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

// awaits visits the sends that a rank has to wait for here: those that the step is after, at the beginning of a
// position those out of scratch cells that are about to be used again, at the end all of them.
func (a *actor) awaits(visit func(step int, chunk int64)) {
	switch {
	case a.position >= a.last:
		for k, sent := range a.sent {
			for i := range sent {
				visit(i, int64(k))
			}
		}
		return
	case a.next < len(a.plan.Steps):
		for _, j := range a.plan.Steps[a.next].After {
			visit(j, a.chunk())
		}
	}
	if again := a.position - a.sets; a.next == 0 && again >= 0 {
		for _, j := range a.fromScratch {
			visit(j, again)
		}
	}
}

// number is which message of its channel a send has made, from 1; 0 if it has made none.
func (a *actor) number(step int, chunk int64) int {
	if chunk < 0 || chunk >= int64(len(a.sent)) {
		return 0
	}
	return a.sent[chunk][step]
}

// free says whether all that the rank has to wait for here has been taken. If so, the rank knows it.
func (a *actor) free() bool {
	ok := true
	a.awaits(func(step int, chunk int64) {
		if n := a.number(step, chunk); n > 0 {
			c := a.channels[step]
			if ok = ok && c.taken >= n; ok {
				c.known = max(c.known, n)
			}
		}
	})
	return ok
}

// waiting says what a rank that cannot go on waits for.
func (r *run) waiting(a *actor) string {
	text := ""
	a.awaits(func(step int, chunk int64) {
		if n := a.number(step, chunk); text == "" && n > 0 && a.channels[step].taken < n {
			text = fmt.Sprintf("%s waits until rank %d has taken the message of chunk %d, step %d", a.name(), a.plan.Steps[step].Peer, chunk, step)
		}
	})
	if text != "" {
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
	if k >= 0 && k < a.last-a.lag && !a.plan.idle(*s, uint64(k), r.call.Lengths) {
		moved, err = r.do(a, *s, k)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", a.name(), err)
	}
	if moved {
		a.next++
	}
	return moved, nil
}

// do carries out a step whose sends have been taken, or says that its channel is not ready.
func (r *run) do(a *actor, s Step, k int64) (moved bool, err error) {
	c := a.channels[a.next]
	switch s.Op {
	case Send:
		if c.put-c.taken >= r.capacity {
			return false, nil
		}
		m := packet{bytes: a.plan.bytes(s.From, uint64(k), r.call.Lengths), round: max(a.sending, a.taking) + 1, sender: a, step: a.next, chunk: k}
		if a.plan.Kind == coll.Barrier {
			m.met = slices.Clone(a.met)
		}
		extents := r.extents(a, s.From, k)
		if m.content, err = read(extents); err != nil {
			return false, err
		}
		c.queue = append(c.queue, m)
		c.put++
		a.sending = m.round
		a.posted = append(a.posted, posted{a.next, k, c, c.put, extents})
		a.sent[k][a.next] = c.put
		return true, nil
	case Recv, RecvReduce:
		if c.put == c.taken {
			return false, nil
		}
		m := c.queue[0]
		if bytes := a.plan.bytes(s.To, uint64(k), r.call.Lengths); bytes != m.bytes {
			return false, fmt.Errorf("expects %d bytes, %v has %d", bytes, m, m.bytes)
		}
		sender, from := &m.sender.plan, m.sender.plan.Steps[m.step].From
		if !sameUnits(&a.plan, s.To, sender, from, uint64(k), r.call.Lengths) || a.plan.longest(s.To, r.call.Lengths) != sender.longest(from, r.call.Lengths) {
			return false, fmt.Errorf("takes the blocks of %v for others, of other lengths", m)
		}
		c.queue = slices.Delete(c.queue, 0, 1)
		c.taken++
		a.met.join(m.met)
		a.taking = max(a.taking+1, m.round)
		values := m.content
		if s.Op == RecvReduce {
			own, err := read(r.extents(a, s.From, k))
			if err != nil {
				return false, err
			}
			if s.MessageFirst {
				values, err = r.combine(values, own)
			} else {
				values, err = r.combine(own, values)
			}
			if err != nil {
				return false, err
			}
		}
		if err := r.write(a, s.To, k, values); err != nil || s.Op == Recv {
			return true, err
		}
		return true, r.streams(a, s, k)
	default:
		if s.Op == Copy && slices.Equal(r.extents(a, s.From, k), r.extents(a, s.To, k)) {
			return true, nil // in place
		}
		values, err := read(r.extents(a, s.From, k))
		if err != nil {
			return false, err
		}
		if s.Op == Reduce {
			into, err := read(r.extents(a, s.To, k))
			if err != nil {
				return false, err
			}
			if values, err = r.combine(into, values); err != nil {
				return false, err
			}
		}
		if err := r.write(a, s.To, k, values); err != nil {
			return false, err
		}
		return true, r.streams(a, s, k)
	}
}

// streams says what is wrong with a step for whoever carries it out byte by byte, where this checker reads all and then
// writes all: From and To must be of the same length, and where they are the same memory at the same place of it.
func (r *run) streams(a *actor, s Step, k int64) error {
	if !sameUnits(&a.plan, s.From, &a.plan, s.To, uint64(k), r.call.Lengths) {
		return fmt.Errorf("reads %d bytes and writes %d, or blocks of other lengths",
			a.plan.bytes(s.From, uint64(k), r.call.Lengths), a.plan.bytes(s.To, uint64(k), r.call.Lengths))
	}
	read := uint64(0)
	for _, f := range r.extents(a, s.From, k) {
		written := uint64(0)
		for _, t := range r.extents(a, s.To, k) {
			if f.memory == t.memory && f.lo < t.hi && t.lo < f.hi && read+t.lo != written+f.lo {
				return fmt.Errorf("reads what it writes elsewhere")
			}
			written += t.hi - t.lo
		}
		read += f.hi - f.lo
	}
	return nil
}

func (r *run) combine(left, right []value) ([]value, error) {
	if len(left) != len(right) {
		return nil, fmt.Errorf("reduces %d units with %d", len(left), len(right))
	}
	out := make([]value, len(left))
	for i := range left {
		v, err := r.trees.combine(left[i], right[i])
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// write puts values where they belong, unless a send may still read there.
func (r *run) write(a *actor, to []Region, k int64, values []value) error {
	for len(a.posted) > 0 && a.posted[0].number <= a.posted[0].channel.known {
		a.posted = a.posted[1:]
	}
	for _, e := range r.extents(a, to, k) {
		for _, p := range a.posted {
			if p.number <= p.channel.known {
				continue
			}
			for _, busy := range p.extents {
				if busy.memory == e.memory && busy.lo < e.hi && e.lo < busy.hi {
					return fmt.Errorf("overwrites what the message of chunk %d, step %d to rank %d may still be read from", p.chunk, p.step, a.plan.Steps[p.step].Peer)
				}
			}
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
