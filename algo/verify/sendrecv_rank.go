package verify

import (
	"fmt"

	"sagecomm/algo/plan"
)

// actor is one rank in a run.
type actor struct {
	plan          plan.SendRecvPlan
	channels      []*channel // by step
	position      int64
	next          int // step at this position
	last          int64
	lag, sets     int64
	done          bool
	buffers       [plan.Scratch + 1][]*unitMemory // by block; by set and cell
	sent          []int32                         // by chunk and step: the number of the message in its channel, from 1
	left          int                             // index in sent: at the end, all messages before it are known to be taken
	fromScratch   []int                           // steps that send out of scratch memory
	met           ranks
	sending       int // the last round in which it has sent
	taking        int // the last round in which it has taken a message
	outputWritten bool
}

// chunk returns the chunk that the next step works on at the present position.
func (a *actor) chunk() int64 { return a.position - int64(a.plan.Steps[a.next].Lag) }

// name returns where a rank is. Every error begins with it.
func (a *actor) name() string {
	if a.next >= len(a.plan.Steps) || a.position >= a.last {
		return fmt.Sprintf("rank %d, at the end", a.plan.Rank)
	}
	return fmt.Sprintf("rank %d, chunk %d, step %d (%v)", a.plan.Rank, a.chunk(), a.next, a.plan.Steps[a.next].Op)
}

// awaits calls visit, as long as that returns true, for the sends that the rank has to wait for now. Before a step these are
// the sends in its After, at the beginning of a position the sends out of scratch cells that are used again, at the end all
// sends. awaits reports whether visit always returned true.
func (a *actor) awaits(visit func(step int, chunk int64) bool) bool {
	steps := len(a.plan.Steps)
	switch {
	case a.position >= a.last:
		for ; a.left < len(a.sent); a.left++ { // counters only grow, so a wait that is over stays over
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

// number returns the number, from 1, of the message that a send has put into its channel; 0 if it has put none.
func (a *actor) number(step int, chunk int64) int {
	if at := chunk*int64(len(a.plan.Steps)) + int64(step); chunk >= 0 && at < int64(len(a.sent)) {
		return int(a.sent[at])
	}
	return 0
}

// free reports whether all messages that the rank has to wait for now have been taken. If so, it records that the rank knows.
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

// waiting describes what a rank that cannot go on waits for.
func (r *sendRecvRun) waiting(a *actor) string {
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
	if s.Op == plan.Send {
		return fmt.Sprintf("%s waits for room in channel %d to rank %d", a.name(), s.Channel, s.Peer)
	}
	return fmt.Sprintf("%s waits for a message in channel %d from rank %d", a.name(), s.Channel, s.Peer)
}
