package verify

import (
	"cmp"
	"fmt"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// channel is one of the bounded queues between two ranks.
type channel struct {
	queue      []packet
	put, taken int
	known      int // how many of those taken the sender has waited for
}

// packet is a message in a channel.
type packet struct {
	content []unitValue
	bytes   uint64
	met     ranks // ranks from which the sender has heard, directly or not
	round   int   // in which it is sent
	sender  *actor
	step    int
	chunk   int64
}

func (m packet) String() string {
	return fmt.Sprintf("the message of rank %d, chunk %d, step %d to rank %d",
		m.sender.plan.Rank, m.chunk, m.step, m.sender.plan.Steps[m.step].Peer)
}

// posted is a send that may still read some units of a memory.
type posted struct {
	lo, hi  uint64
	step    int
	chunk   int64
	channel *channel
	number  int // of the message in its channel, from 1
}

// sendRecvRun carries out the steps of all ranks on symbolic memory and bounded channels.
type sendRecvRun struct {
	call     SendRecvCall
	capacity int
	trees    *trees
	ranks    []*actor

	values   slab[unitValue]
	memories slab[unitMemory]
	packets  slab[packet]
	places   []extent    // of the present step
	message  []unitValue // and what it reads
	other    []unitValue
}

// newSendRecvRun prepares a call. The trees may be those of other runs of equally many ranks.
func newSendRecvRun(c SendRecvCall, capacity int, known *trees) *sendRecvRun {
	size := len(c.Plans)
	r := &sendRecvRun{call: c, capacity: capacity, trees: known}
	actors, met, buffers, blocks := make([]actor, size), slab[uint64]{}, slab[*unitMemory]{}, size
	if plan.IsFlat(c.Plans[0].Kind) {
		blocks = 1
	}
	for rank, p := range c.Plans {
		a := &actors[rank]
		*a = actor{plan: p, lag: int64(p.MaxLag()), sets: int64(p.Sets()), met: met.take((size + 63) / 64)}
		chunks := p.Chunks(c.Lengths)
		a.last = int64(chunks) + a.lag
		a.met.add(rank)
		a.buffers = [...][]*unitMemory{buffers.take(blocks), buffers.take(blocks), buffers.take(p.Sets() * p.Cells)}
		a.sent = make([]int32, int(chunks)*len(p.Steps))
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Op == plan.Send && s.FromScratch() {
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
func (r *sendRecvRun) join() {
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
			if s.Op > plan.RecvReduce {
				continue
			}
			from, to := a.plan.Rank, s.Peer
			if s.Op != plan.Send {
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

// finish runs until nothing more can run. It returns an error if ranks are stuck or messages are left.
func (r *sendRecvRun) finish() error {
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
	// The rank that has come least far is named first, since the others usually wait for it.
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
		text += "; and " + coll.Count(len(stuck)-3, "rank") + " more"
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

// left describes the first message, by sender and step, that is still in a channel, or returns "".
func (r *sendRecvRun) left() string {
	for _, a := range r.ranks {
		for _, c := range a.channels {
			if c != nil && c.put > c.taken {
				return fmt.Sprintf("; nobody has taken %v", c.queue[0])
			}
		}
	}
	return ""
}
