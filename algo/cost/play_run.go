package cost

import (
	"math/bits"

	"sagecomm/algo/plan"
)

// run carries out the steps of a rank as long as what they wait for has happened.
func (p *play) run(rank int32) {
	who := &p.players[rank]
	for ; who.position < who.chunks+who.lag; who.enter() {
		for ; who.step < len(who.bones); who.step++ {
			b := &who.bones[who.step]
			chunk := who.position - int(b.lag)
			if chunk < 0 || chunk >= who.chunks {
				continue
			}
			bytes := p.bytes(who, b, chunk)
			if bytes == 0 && (chunk > 0 || b.op > plan.RecvReduce) {
				continue
			}
			if !p.beat(rank, b, chunk, bytes) {
				return
			}
			who.fresh = false
		}
	}
	who.done = true
}

// enter begins the next position. The messages of its chunk take the place of those of an old chunk.
func (w *player) enter() {
	w.position, w.step, w.fresh = w.position+1, 0, true
	if w.position < w.chunks {
		clear(w.numbersOf(w.position))
	}
}

// window returns the number of chunks whose messages a rank must know: the chunks in flight and those whose scratch memory is
// used again.
func (w *player) window() int { return min(w.chunks, w.sets()+1) }

func (w *player) sets() int { return w.lag + 2 }

// numbersOf returns the numbers of the messages of a chunk.
func (w *player) numbersOf(chunk int) []uint32 {
	row := chunk % w.window() * w.ordered
	return w.numbers[row : row+w.ordered]
}

// bytes returns the number of bytes that a step moves in a chunk.
func (p *play) bytes(who *player, b *bone, chunk int) uint64 {
	switch {
	case who.uneven != nil:
		s := &who.uneven.Steps[who.step]
		if b.op == plan.Send {
			return who.uneven.Bytes(s.From, uint64(chunk), p.lengths)
		}
		return who.uneven.Bytes(s.To, uint64(chunk), p.lengths)
	case chunk == who.chunks-1:
		return who.skeleton.bytes(b, p.last, uint64(who.turn))
	default:
		return who.skeleton.bytes(b, p.full, uint64(who.turn))
	}
}

// beat carries out a step in a chunk. It reports false if the rank has to wait.
func (p *play) beat(rank int32, b *bone, chunk int, bytes uint64) bool {
	who := &p.players[rank]
	free, ok := p.settled(rank, b, chunk)
	switch {
	case !ok:
		return false
	case b.op == plan.Send:
		return p.send(rank, b, chunk, bytes, free)
	case b.op == plan.Recv || b.op == plan.RecvReduce:
		return p.recv(rank, b, bytes, free)
	}
	who.now = max(who.now, free)
	if b.op == plan.Reduce {
		who.now = p.plus(who.now, bytes, p.reduce)
	} else {
		who.now = p.plus(who.now, bytes, p.copy)
	}
	return true
}

// settled returns when all messages that a step must wait for were taken. It reports false if one has not been taken.
func (p *play) settled(rank int32, b *bone, chunk int) (at Femto, ok bool) {
	who := &p.players[rank]
	if b.after < b.afterEnds {
		numbers := who.numbersOf(chunk)
		for _, o := range who.after[b.after:b.afterEnds] {
			if at, ok = p.taken(rank, o, numbers, at); !ok {
				return 0, false
			}
		}
	}
	if again := who.position - who.sets(); who.fresh && len(who.scratch) > 0 && again >= 0 && again < who.chunks {
		numbers := who.numbersOf(again)
		for _, o := range who.scratch {
			if at, ok = p.taken(rank, o, numbers, at); !ok {
				return 0, false
			}
		}
	}
	return at, true
}

// taken returns the time at which a message was taken, but not less than `since`. It reports false if the message has not been
// taken.
func (p *play) taken(rank int32, o ordered, numbers []uint32, since Femto) (Femto, bool) {
	i, n := p.first[rank]+o.line, numbers[o.number]
	l := &p.lines[i]
	switch {
	case n+uint32(p.capacity) <= l.sent:
		return since, true // a later message was sent into its place, or the message was never sent
	case n == 0:
		return since, true
	case n > l.taken:
		p.players[rank].awaits = i
		return 0, false
	}
	return max(since, p.place(i, n-1).at), true
}

// send puts a message into its channel. The message leaves when the channel has room and the rank's link is free, and
// the rank goes on meanwhile.
func (p *play) send(rank int32, b *bone, chunk int, bytes uint64, free Femto) bool {
	who, i := &p.players[rank], p.first[rank]+b.line
	l := &p.lines[i]
	s := p.place(i, l.sent)
	if l.sent >= uint32(p.capacity) {
		if l.taken <= l.sent-uint32(p.capacity) {
			who.awaits = i
			return false
		}
		free = max(free, s.at)
	}
	link := &p.links[l.class]
	who.now = p.plus(max(who.now, free)+link.step, 0, 0)
	leaves := max(who.now, who.out[l.class])
	who.out[l.class] = p.plus(leaves, bytes, link.byte)
	who.messages++
	who.sent += bytes
	s.bytes = bytes
	if l.shared {
		s.at = leaves
		p.waiting.push(event{at: leaves, line: i, message: l.sent})
	} else {
		s.at = leaves + link.latency
		l.there++
	}
	l.sent++
	if b.number >= 0 {
		who.numbersOf(chunk)[b.number] = l.sent
	}
	p.wake(l.to, i)
	return true
}

// recv takes the next message out of its channel when its bytes have come through the rank's link. The bytes wait in the
// channel until the bytes that the message overwrites have been taken.
func (p *play) recv(rank int32, b *bone, bytes uint64, free Femto) bool {
	who := &p.players[rank]
	if b.line == noLine {
		who.awaits = noLine
		return false
	}
	i := p.first[p.player(p.turn(who, b.peer))] + b.line
	l := &p.lines[i]
	if l.taken >= l.there {
		who.awaits = i
		return false
	}
	link, s := &p.links[l.class], p.place(i, l.taken)
	arrived := s.at
	if !l.shared {
		arrived = p.plus(max(s.at, who.in[l.class]), s.bytes, link.byte)
		who.in[l.class] = arrived
	}
	reduced := uint64(0)
	if b.op == plan.RecvReduce {
		reduced = bytes
	}
	who.now = p.plus(max(who.now, free, arrived)+link.step, reduced, p.reduce)
	s.at = who.now
	l.taken++
	p.wake(l.from, i)
	return true
}

// plus returns a time plus the time of some bytes. It stops at mostTime and marks the play as too long.
func (p *play) plus(at Femto, bytes uint64, perByte Femto) Femto {
	over, takes := bits.Mul64(bytes, uint64(perByte))
	if over != 0 || takes > uint64(mostTime) || at > mostTime {
		p.tooLong = true
		return mostTime
	}
	return at + Femto(takes)
}
