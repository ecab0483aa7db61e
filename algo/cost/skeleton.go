package cost

import (
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// skeleton is the part of a plan on which its time depends. Its peers are relative to the rank that is played, and so are its
// pieces if it is turned.
type skeleton struct {
	bones   []bone
	spans   []span
	after   []ordered // sends that bones wait for
	scratch []ordered // sends out of scratch memory
	ordered int       // sends that something waits for
	outlets []outlet
	lines   index[outlet] // numbers of outlets, whose sends are 0 here
	lag     int
	pieces  uint64
	turned  bool               // pieces are turned as well: piece i of rank 0 is piece i + r of rank r
	uneven  *plan.SendRecvPlan // the plan itself, where blocks differ in length
}

// bone is a step. Its spans, and the sends that it waits for, are ranges of the skeleton's lists.
type bone struct {
	op               plan.Op
	channel          uint8
	lag              int32
	peer             int32
	line             int32 // of the sender's lines
	number           int32 // of an ordered send, else -1
	spans, spansEnd  int32
	after, afterEnds int32
}

// span is a range of pieces, repeated a number of times.
type span struct{ first, count, times uint64 }

// ordered is a send that some step waits for: its number among such sends, and its line among those of the rank.
type ordered struct{ number, line int32 }

// outlet is a channel that a rank sends into, with the number of messages in a chunk.
type outlet struct {
	peer    int32
	channel uint8
	sends   int
}

// noLine is the line of a channel into which nobody sends.
const noLine = -1

// index finds numbers by keys. It looks at each of a few keys, which takes less time than a map, and uses a map for
// many.
type index[K comparable] struct {
	keys    []K
	numbers []int32
	many    map[K]int32
}

// fewKeys is the number of keys up to which index looks at each.
const fewKeys = 32

func (x *index[K]) find(key K) (number int32, ok bool) {
	if x.many != nil {
		number, ok = x.many[key]
		return number, ok
	}
	if i := slices.Index(x.keys, key); i >= 0 {
		return x.numbers[i], true
	}
	return 0, false
}

func (x *index[K]) add(key K, number int32) {
	if len(x.keys) < fewKeys {
		x.keys, x.numbers = append(x.keys, key), append(x.numbers, number)
		return
	}
	if x.many == nil {
		x.many = map[K]int32{}
		for i, k := range x.keys {
			x.many[k] = x.numbers[i]
		}
	}
	x.many[key] = number
}

// strip makes the skeleton of a plan. It leaves open from which lines the plan receives, see [Prepared.join].
func strip(p plan.SendRecvPlan, uneven, turned bool) *skeleton {
	k := &skeleton{
		bones: make([]bone, 0, len(p.Steps)), lag: p.MaxLag(), pieces: uint64(p.Pieces),
		turned: turned && plan.IsFlat(p.Kind) && p.Pieces == p.Size,
	}
	if uneven && p.Kind != coll.Barrier {
		k.uneven = &p
	}
	awaited, sends := make([]bool, len(p.Steps)), 0
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, j := range s.After {
			awaited[j] = true
		}
		if s.Op == plan.Send {
			sends++
		}
	}
	outlets := min(sends, fewKeys) // there are thousands of skeletons, and growing their lists takes long
	k.outlets = make([]outlet, 0, outlets)
	k.lines = index[outlet]{keys: make([]outlet, 0, outlets), numbers: make([]int32, 0, outlets)}
	var single index[span]
	for i := range p.Steps {
		s := &p.Steps[i]
		b := bone{op: s.Op, channel: s.Channel, lag: int32(s.Lag), peer: int32(s.Peer), line: noLine, number: -1}
		regions := s.To
		if s.Op == plan.Send {
			regions = s.From
			b.line = k.lineTo(outlet{peer: b.peer, channel: s.Channel})
			if scratch := s.FromScratch(); scratch || awaited[i] {
				b.number = int32(k.ordered)
				k.ordered++
				if scratch {
					k.scratch = append(k.scratch, ordered{b.number, b.line})
				}
			}
		}
		b.spans, b.spansEnd = k.spansOf(regions, &single)
		k.bones = append(k.bones, b)
	}
	for i := range p.Steps {
		b := &k.bones[i]
		b.after = int32(len(k.after))
		for _, j := range p.Steps[i].After {
			k.after = append(k.after, ordered{k.bones[j].number, k.bones[j].line})
		}
		b.afterEnds = int32(len(k.after))
	}
	return k
}

// lineTo returns the number of the line to an outlet, a new one if there is none yet.
func (k *skeleton) lineTo(to outlet) int32 {
	i, ok := k.lines.find(to)
	if !ok {
		i = int32(len(k.outlets))
		k.lines.add(to, i)
		k.outlets = append(k.outlets, to)
	}
	k.outlets[i].sends++
	return i
}

// spansOf returns the spans of some regions. Regions of the same pieces, of whichever blocks, make one span. A step of
// one span, which nearly every step is, shares it with steps that have the same span.
func (k *skeleton) spansOf(regions []plan.Region, single *index[span]) (from, to int32) {
	from = int32(len(k.spans))
	for _, r := range regions {
		s := span{uint64(r.First), uint64(r.Count), 1}
		if last := len(k.spans) - 1; last >= int(from) && k.spans[last].first == s.first && k.spans[last].count == s.count {
			k.spans[last].times++
			continue
		}
		k.spans = append(k.spans, s)
	}
	if to = int32(len(k.spans)); to != from+1 {
		return from, to
	}
	if known, ok := single.find(k.spans[from]); ok {
		k.spans = k.spans[:from]
		return known, known + 1
	}
	single.add(k.spans[from], from)
	return from, to
}

// cut is the division of a chunk into pieces, see [plan.SendRecvPlan].
type cut struct{ bytes, each, more uint64 }

// cutOf returns the division of a chunk of that many bytes.
func cutOf(bytes, pieces uint64) cut {
	units := (bytes + plan.Unit - 1) / plan.Unit
	return cut{bytes, units / pieces, units % pieces}
}

// start returns where a piece begins.
func (c cut) start(piece uint64) uint64 {
	return min((piece*c.each+min(piece, c.more))*plan.Unit, c.bytes)
}

// bytes returns the number of bytes that a step moves in a chunk with this cut.
func (k *skeleton) bytes(b *bone, c cut, turn uint64) (sum uint64) {
	for i := b.spans; i < b.spansEnd; i++ {
		s := &k.spans[i]
		first := s.first
		if k.turned {
			// In a plan that can be turned so, a region is one piece or all pieces.
			if first += turn; first >= k.pieces {
				first -= k.pieces
			}
			if s.count == k.pieces {
				first = 0
			}
		}
		sum += (c.start(first+s.count) - c.start(first)) * s.times
	}
	return sum
}
