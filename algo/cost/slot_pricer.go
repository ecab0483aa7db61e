package cost

import (
	"time"

	"sagecomm/algo/plan"
)

// playedSlotChunks is the number of chunks of a collective that are played. A rank cannot be ahead by more chunks than there
// are slots, so the pattern of waiting repeats well within that number.
const playedSlotChunks = 16

// PriceSlots predicts the time from the moment at which all ranks enter the collective until the last one is done. The
// plans stand for all ranks: the root's and one other rank's, or one plan where there is no root. Their steps are
// played against each other: a step begins when the rank is free and the flags that it waits for have had a hop's time
// to arrive, so waits that the pipeline hides cost nothing. Beyond some number of chunks the time per chunk is constant
// and is multiplied. A plan that cannot finish gets the largest duration.
func PriceSlots(plans []plan.SlotPlan, bytes uint64, link Memory) time.Duration {
	return NewSlotPricer(plans, link).Price(bytes).Duration()
}

// SlotPricer computes [PriceSlots] for one algorithm and many lengths. It plays each length once; lengths beyond the played
// chunks share most plays. One goroutine at a time may use it.
type SlotPricer struct {
	plan   plan.SlotPlan
	link   femtoMemory
	cast   roles
	played map[uint64]Femto // by length
}

// NewSlotPricer prices a group by the plans that stand for all its ranks, see [PriceSlots].
func NewSlotPricer(plans []plan.SlotPlan, link Memory) *SlotPricer {
	return &SlotPricer{plans[0], link.femto(), rolesOf(plans), map[uint64]Femto{}}
}

// play plays a length, or returns the time of an earlier play of the same length.
func (r *SlotPricer) play(bytes uint64) Femto {
	t, ok := r.played[bytes]
	if !ok {
		t = r.cast.play(bytes, r.link)
		r.played[bytes] = t
	}
	return t
}

// Price predicts the time of [PriceSlots], unrounded.
func (r *SlotPricer) Price(bytes uint64) Femto {
	chunks, chunk, head := r.plan.Chunks(bytes), uint64(r.plan.Chunk), uint64(r.plan.Head)
	if chunks <= playedSlotChunks {
		return r.play(bytes)
	}
	tail := bytes - (chunks-1)*chunk // with the head
	begin := r.play((playedSlotChunks-1)*chunk + tail)
	all, half := r.play(head+playedSlotChunks*chunk), r.play(head+playedSlotChunks/2*chunk)
	if begin == Never || all == Never {
		return Never
	}
	each := max(1, (all-half)/(playedSlotChunks/2))
	rest := chunks - playedSlotChunks
	if rest >= uint64((Never-begin)/each) {
		return Never
	}
	return begin + Femto(rest)*each
}

// Count returns the largest counts of any rank in a collective of that many bytes. It counts a whole chunk once and multiplies.
func (r *SlotPricer) Count(bytes uint64) (most SlotTraffic) {
	for _, p := range r.cast.plans {
		chunks, chunk, head := p.Chunks(bytes), uint64(p.Chunk), uint64(p.Head)
		t := SlotTraffic{}
		if chunks <= 2 {
			t.join(CountSlots(p, bytes), 1)
		} else {
			t.join(CountSlots(p, bytes-(chunks-2)*chunk), 1)
			t.join(CountSlots(p, head+2*chunk), int(chunks-2))
			t.join(CountSlots(p, head+chunk), -int(chunks-2))
		}
		most = SlotTraffic{
			Steps: max(most.Steps, t.Steps), Flags: max(most.Flags, t.Flags), Near: max(most.Near, t.Near),
			Far:    max(most.Far, t.Far),
			Claims: max(most.Claims, t.Claims), Reduced: max(most.Reduced, t.Reduced), Stored: max(most.Stored, t.Stored),
		}
	}
	return most
}

// roles are the plans that stand for all ranks.
type roles struct {
	plans []plan.SlotPlan
	root  int // the rank of plans[0]; -1 where one plan stands for all ranks
}

// rolesOf returns the roles of one plan, or of two of which the first is the root's.
func rolesOf(plans []plan.SlotPlan) roles {
	if len(plans) == 1 {
		return roles{plans, -1}
	}
	return roles{plans, plans[0].Rank}
}

// roleOf returns the index of the plan that stands for a rank.
func (r roles) roleOf(rank int) int {
	if rank == r.root || r.root < 0 {
		return 0
	}
	return 1
}

// play returns the time at which the last role is done.
func (r roles) play(bytes uint64, link femtoMemory) Femto {
	type actor struct {
		steps  []plan.SlotStep
		next   int
		now    Femto
		posted [2][plan.Counters][]Femto // by set of slots and chunk; 0: not yet, since no post is at time 0
	}
	actors := make([]actor, len(r.plans))
	for i, p := range r.plans {
		for s := range plan.Concrete(p, bytes) {
			actors[i].steps = append(actors[i].steps, s)
		}
		for c := range plan.Counters {
			actors[i].posted[plan.SmallSlots][c] = make([]Femto, max(1, p.Chunks(bytes)))
			actors[i].posted[plan.LargeSlots][c] = make([]Femto, p.Chunks(bytes))
		}
	}
	// ready returns the time at which all flags that a step waits for have arrived. It reports false if a flag has not been
	// posted.
	ready := func(s plan.SlotStep) (at Femto, ok bool) {
		for _, w := range s.Waits {
			if w.Chunk < 0 {
				continue
			}
			posted := actors[r.roleOf(w.Rank)].posted[s.Slots][w.Counter][w.Chunk]
			if posted == 0 {
				return 0, false
			}
			at = max(at, posted+link.hop)
		}
		return at, true
	}
	for progress := true; progress; {
		progress = false
		for i := range actors {
			a := &actors[i]
			for a.next < len(a.steps) {
				s := a.steps[a.next]
				at, ok := ready(s)
				if !ok {
					break
				}
				var t SlotTraffic
				t.add(s, r.plans[i])
				a.now = max(1, max(a.now, at)+link.price(t))
				for _, c := range s.Posts {
					a.posted[s.Slots][c][s.Chunk] = a.now
				}
				a.next++
				progress = true
			}
		}
	}
	var end Femto
	for _, a := range actors {
		if a.next < len(a.steps) {
			return Never
		}
		end = max(end, a.now)
	}
	return end
}
