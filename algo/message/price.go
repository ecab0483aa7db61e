// What a collective takes, predicted from its plans.

package message

import (
	"fmt"
	"math"
	"time"
)

// Link is what a class of links costs, in seconds.
type Link struct {
	Latency float64 // from the moment a message leaves until its first byte arrives
	Byte    float64 // per byte on the way: messages of a rank leave, and arrive, one after the other in each class
	Step    float64 // that a rank is busy with sending a message, and again with taking it, bytes aside
}

// Costs are what a price is made of.
type Costs struct {
	Links    []Link
	Class    func(from, to int) int // of Links; nil: all are of class 0
	Reduce   float64                // per byte of a result
	Copy     float64                // per byte copied inside a rank
	Capacity int                    // messages that a channel holds
}

// Price predicts the time from the moment at which all ranks enter a collective until the last one is done. It carries
// out the steps of all ranks in time: a rank is busy with one step after the other; a send leaves when the channel has
// room and the rank's link is free, and the rank goes on meanwhile; a message is there a latency and its bytes later;
// what waits for a message to be taken waits for the receiver. So what a pipeline hides costs nothing.
//
// Ranks may be played in any order, since each time is the maximum of others plus a constant: no queue of events is
// needed and the result does not depend on the order. Times are whole femtoseconds, so that all ranks predict the same.
// build makes the plan of a rank; only its skeleton is kept, so that thousands of ranks fit into memory.
func Price(size int, build func(rank int) Plan, l Lengths, c Costs) (time.Duration, error) {
	if c.Capacity < 1 || len(c.Links) == 0 {
		return 0, fmt.Errorf("a price needs a class of links, and channels that hold a message: %d classes, %d messages", len(c.Links), c.Capacity)
	}
	p := newPlay(size, c)
	for rank := range size {
		p.add(build(rank), l)
	}
	end, err := p.finish()
	return time.Duration((end + 999_999) / 1_000_000), err
}

// femto is time in femtoseconds.
type femto int64

func toFemto(seconds float64) femto { return femto(math.Round(seconds * 1e15)) }

// beat is a step in one chunk: what a price needs of it.
type beat struct {
	op      Op
	channel int32
	bytes   uint64
	reduced uint64
	after   []await
}

// await is a message that must have been taken: the number of it in its channel.
type await struct{ channel, number int32 }

// line is a channel in time.
type line struct {
	from, to int
	class    int
	puts     []femto // when each message leaves
	takes    []femto // when each was taken
	bytes    []uint64
}

// player is a rank in time.
type player struct {
	beats     []beat
	next      int
	now       femto
	out, in   []femto // when its links are free, by class
	finishing []await
}

type play struct {
	links    []femtoLink
	costs    Costs
	reduce   femto
	copy     femto
	players  []player
	lines    []line
	byEnds   map[[3]int]int32
	capacity int
}

type femtoLink struct{ latency, byte, step femto }

func newPlay(size int, c Costs) *play {
	p := &play{costs: c, reduce: toFemto(c.Reduce), copy: toFemto(c.Copy), capacity: c.Capacity, byEnds: map[[3]int]int32{}}
	for _, l := range c.Links {
		p.links = append(p.links, femtoLink{toFemto(l.Latency), toFemto(l.Byte), toFemto(l.Step)})
	}
	p.players = make([]player, 0, size)
	return p
}

func (p *play) line(from, to int, number uint8) int32 {
	key := [3]int{from, to, int(number)}
	if i, ok := p.byEnds[key]; ok {
		return i
	}
	i := int32(len(p.lines))
	class := 0
	if p.costs.Class != nil {
		class = p.costs.Class(from, to)
	}
	p.lines = append(p.lines, line{from: from, to: to, class: class})
	p.byEnds[key] = i
	return i
}

// add takes down the steps of the next rank, in their order.
func (p *play) add(plan Plan, l Lengths) {
	who := player{out: make([]femto, len(p.links)), in: make([]femto, len(p.links))}
	chunks, lag, sets := int(plan.Chunks(l)), plan.MaxLag(), plan.Sets()
	sent := map[int32]int32{}        // messages by channel
	numbers := make([][]int32, 0, 2) // of each step's message, by chunk
	for range chunks {
		numbers = append(numbers, make([]int32, len(plan.Steps)))
	}
	for position := range chunks + lag {
		var reused []await
		if again := position - sets; again >= 0 && again < chunks {
			reused = plan.fromScratch(numbers[again], p)
		}
		for i, s := range plan.Steps {
			k := position - s.Lag
			if k < 0 || k >= chunks || plan.idle(s, uint64(k), l) {
				continue
			}
			b := beat{op: s.Op, after: reused}
			reused = nil
			for _, j := range s.After {
				if n := numbers[k][j]; n > 0 {
					b.after = append(b.after, await{p.line(plan.Rank, plan.Steps[j].Peer, plan.Steps[j].Channel), n})
				}
			}
			moved := s.To
			switch s.Op {
			case Send:
				b.channel = p.line(plan.Rank, s.Peer, s.Channel)
				sent[b.channel]++
				numbers[k][i] = sent[b.channel]
				moved = s.From
			case Recv, RecvReduce:
				b.channel = p.line(s.Peer, plan.Rank, s.Channel)
			}
			b.bytes = plan.bytes(moved, uint64(k), l)
			if s.Op == RecvReduce || s.Op == Reduce {
				b.reduced = b.bytes
			}
			who.beats = append(who.beats, b)
		}
	}
	for channel, n := range sent {
		who.finishing = append(who.finishing, await{channel, n})
	}
	p.players = append(p.players, who)
}

// fromScratch are the messages, of a chunk, out of cells that are about to be used again.
func (p Plan) fromScratch(numbers []int32, in *play) (list []await) {
	for i, n := range numbers {
		if n == 0 {
			continue
		}
		for _, r := range p.Steps[i].From {
			if r.Space == Scratch {
				list = append(list, await{in.line(p.Rank, p.Steps[i].Peer, p.Steps[i].Channel), n})
				break
			}
		}
	}
	return list
}

// finish plays until all ranks are done and returns when the last one is.
func (p *play) finish() (end femto, err error) {
	// A rank that cannot go on is looked at again when one of its channels has moved.
	ready := make([]int, len(p.players))
	queued := make([]bool, len(p.players))
	for rank := range ready {
		ready[rank], queued[rank] = rank, true
	}
	for len(ready) > 0 {
		rank := ready[len(ready)-1]
		ready, queued[rank] = ready[:len(ready)-1], false
		p.run(rank, func(peer int) {
			if !queued[peer] {
				ready, queued[peer] = append(ready, peer), true
			}
		})
	}
	for rank := range p.players {
		who := &p.players[rank]
		taken, ok := p.taken(who.finishing)
		if who.next < len(who.beats) || !ok {
			return 0, fmt.Errorf("rank %d never gets beyond step %d of %d: deadlock", rank, who.next, len(who.beats))
		}
		end = max(end, who.now, taken)
	}
	return end, nil
}

// taken is when the last of some messages was taken, or false if one has not been.
func (p *play) taken(list []await) (at femto, ok bool) {
	for _, w := range list {
		takes := p.lines[w.channel].takes
		if int(w.number) > len(takes) {
			return 0, false
		}
		at = max(at, takes[w.number-1])
	}
	return at, true
}

// run carries out the steps of a rank as long as what they wait for has happened.
func (p *play) run(rank int, wake func(peer int)) {
	who := &p.players[rank]
	for ; who.next < len(who.beats); who.next++ {
		b := &who.beats[who.next]
		free, ok := p.taken(b.after)
		if !ok {
			return
		}
		if b.op > RecvReduce {
			who.now = max(who.now, free) + femto(b.reduced)*p.reduce
			if b.op == Copy {
				who.now += femto(b.bytes) * p.copy
			}
			continue
		}
		c := &p.lines[b.channel]
		link := p.links[c.class]
		if b.op == Send {
			if n := len(c.puts) - p.capacity; n >= 0 {
				if n >= len(c.takes) {
					return
				}
				free = max(free, c.takes[n])
			}
			who.now = max(who.now, free) + link.step
			leaves := max(who.now, who.out[c.class])
			who.out[c.class] = leaves + femto(b.bytes)*link.byte
			c.puts, c.bytes = append(c.puts, leaves), append(c.bytes, b.bytes)
			wake(c.to)
			continue
		}
		n := len(c.takes)
		if n >= len(c.puts) {
			return
		}
		who.in[c.class] = max(c.puts[n]+link.latency, who.in[c.class]) + femto(c.bytes[n])*link.byte
		// What is overwritten must have been taken before the message comes in; its bytes wait in the channel until
		// then.
		who.now = max(who.now, free, who.in[c.class]) + link.step + femto(b.reduced)*p.reduce
		c.takes = append(c.takes, who.now)
		wake(c.from)
	}
}
