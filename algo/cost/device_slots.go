package cost

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// DeviceSlots prices slot plans whose slots lie in the memory of devices. Each rank carries its steps out in one stream, a command
// after the other: a wait for a word of each peer, a copy or a reduction, the write of a word of each peer. So nothing overlaps within
// a rank, and a wait costs time even if the peer was early. All ranks are played, because the devices of two ranks may be
// closer to each other than those of two others.
type DeviceSlots struct {
	plans  []plan.SlotPlan // by rank
	class  [][]int         // of the links, by rank and peer
	links  []femtoLink
	copy   Femto   // per byte of a rank's own memory
	reduce Femto   // per byte of an operand that lies there
	taking []Femto // by rank: how many ranks use its device, and take turns there
}

// NewDeviceSlots prices the plans of all ranks, in their order. Costs.Links[Class(a, b)] is the link from the device of rank a to that
// of rank b; alone is the link inside a device. taking[r] is the number of ranks that use the device of rank r, itself included.
func NewDeviceSlots(plans []plan.SlotPlan, c Costs, alone Link, taking []int) *DeviceSlots {
	toLink := func(l Link) femtoLink { return femtoLink{toFemto(l.Latency), toFemto(l.Byte), toFemto(l.Step)} }
	d := &DeviceSlots{plans: plans, copy: toFemto(c.Copy), reduce: toFemto(c.Reduce)}
	for _, l := range c.Links {
		d.links = append(d.links, toLink(l))
	}
	d.links = append(d.links, toLink(alone)) // of a rank with itself
	for a := range plans {
		d.taking = append(d.taking, Femto(taking[a]))
		classes := make([]int, len(plans))
		for b := range plans {
			if classes[b] = len(c.Links); a != b {
				classes[b] = c.Class(a, b)
			}
		}
		d.class = append(d.class, classes)
	}
	return d
}

// Price predicts the time from the moment at which all ranks enter the collective until the last one is done. Beyond some number of
// chunks the time of a chunk is constant and is multiplied.
func (d *DeviceSlots) Price(bytes uint64) Femto {
	first := d.plans[0]
	chunks, chunk := first.Chunks(bytes), uint64(first.Chunk)
	if first.Kind == coll.Barrier || chunks <= playedSlotChunks {
		return d.play(bytes)
	}
	begin := d.play((playedSlotChunks-1)*chunk + bytes - (chunks-1)*chunk)
	all, half := d.play(playedSlotChunks*chunk), d.play(playedSlotChunks/2*chunk)
	if begin == Never || all == Never || half == Never {
		return Never
	}
	each, rest := max(1, (all-half)/(playedSlotChunks/2)), chunks-playedSlotChunks
	if rest >= uint64((mostTime)/each) {
		return Never
	}
	return begin + Femto(rest)*each
}

// stream is the play of one rank.
type stream struct {
	steps  []plan.SlotStep
	next   int
	now    Femto
	waits  [plan.Counters][]bool  // by peer: the rank waits for that word of it
	posted [plan.Counters][]Femto // by chunk; 0: not yet, since no post is at time 0
}

// play returns the time at which the last rank is done.
func (d *DeviceSlots) play(bytes uint64) Femto {
	streams := make([]stream, len(d.plans))
	for rank, p := range d.plans {
		s := &streams[rank]
		for c := range s.waits {
			s.waits[c] = make([]bool, len(d.plans))
		}
		for step := range plan.Concrete(p, bytes) {
			s.steps = append(s.steps, step)
			for _, w := range step.Waits {
				s.waits[w.Counter][w.Rank] = true
			}
		}
		for c := range s.posted {
			s.posted[c] = make([]Femto, max(1, p.Chunks(bytes)))
		}
	}
	for progress := true; progress; {
		progress = false
		for rank := range streams {
			s := &streams[rank]
			for s.next < len(s.steps) && d.carryOut(rank, streams) {
				s.next++
				progress = true
			}
		}
	}
	var end Femto
	for i := range streams {
		if streams[i].next < len(streams[i].steps) {
			return Never
		}
		end = max(end, streams[i].now)
	}
	return end
}

// carryOut carries out the next step of a rank. It reports false if the step waits for a word that is not written yet.
func (d *DeviceSlots) carryOut(rank int, streams []stream) bool {
	s := &streams[rank]
	step := &s.steps[s.next]
	now := s.now
	for _, w := range step.Waits {
		if w.Chunk < 0 || w.Counter == plan.Consumed && !streams[w.Rank].waits[plan.Filled][rank] {
			continue
		}
		posted := streams[w.Rank].posted[w.Counter][w.Chunk]
		if posted == 0 {
			return false
		}
		link := d.link(rank, w.Rank)
		now = max(now+link.step, posted+link.latency)
	}
	for _, m := range step.Moves {
		now += d.move(rank, m)
	}
	for _, c := range step.Posts {
		for peer := range streams {
			awaited := streams[peer].waits[c][rank]
			if c == plan.Consumed { // by those whose slots the rank has read
				awaited = s.waits[plan.Filled][peer]
			}
			if awaited {
				now += d.link(rank, peer).step
			}
		}
	}
	s.now = min(max(1, now), mostTime) // so that sums do not overflow
	for _, c := range step.Posts {
		s.posted[c][step.Chunk] = s.now
	}
	return true
}

// move returns the time of the commands of a move. A reduction reads slots where they are, and writes to one place; copies take its
// result to the others.
func (d *DeviceSlots) move(rank int, m plan.Move) Femto {
	var bytes, commands Femto
	own := d.copy
	if m.Reduce {
		own = d.reduce
	}
	for _, from := range m.From {
		each := own
		if from.Space == plan.Slot && from.Rank != rank {
			each = d.link(rank, from.Rank).byte
		}
		bytes += Femto(from.Len) * each
	}
	commands = d.link(rank, rank).step
	for i, to := range m.To {
		switch {
		case to.Space == plan.Slot && to.Rank != rank:
			bytes += Femto(to.Len) * d.link(rank, to.Rank).byte
		case i > 0:
			bytes += Femto(to.Len) * d.copy
		}
		if i > 0 {
			commands += d.link(rank, to.Rank).step
		}
	}
	return min(mostTime/d.taking[rank], bytes)*d.taking[rank] + commands
}

func (d *DeviceSlots) link(rank, peer int) femtoLink { return d.links[d.class[rank][peer]] }
