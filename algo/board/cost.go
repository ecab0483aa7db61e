package board

import (
	"math"
	"time"
)

// Link holds what a class of links costs, in seconds.
type Link struct {
	Hop   float64 // from storing a flag until a rank that waits for it has seen it
	Flag  float64 // looking at one peer's flag that is already there
	Step  float64 // carrying out a stage on a chunk, bytes aside
	Copy  float64 // per byte copied between memories that this core has at hand
	Far   float64 // per byte taken out of a slot that another core has just written
	Claim float64 // per byte stored into a slot whose lines other cores have read since, on top of Copy
	Fold  float64 // per byte of each operand of a fold, on top of Far for operands in others' slots
	Store float64 // per byte stored to each target of a fold after the first
}

// DefaultLink is of a server processor (Sapphire Rapids class, two virtual cores, 2 MiB of second-level cache each),
// fitted to what all_reduce took there on two pinned ranks, less what a group of one rank takes:
//
//	bytes                8     8 KiB   16 KiB   64 KiB   256 KiB   1 MiB
//	one-shot  measured   1.6   3.4     6.3      11.7     43        172    us
//	          predicted  0.9   2.2     3.5      11.6     44        176
//	two-shot  measured   1.8   4.5     5.1      8.2      28        108    us
//	          predicted  1.5   2.3     3.1      8.1      29        115
//
// From 4 MiB on, memory beyond the caches takes as long again as a quarter of this.
// A processor with a faster path between cores (Zen 5: 1 MiB in 25 us) scales all terms, so that the choices stay
// close while the times do not: predicted times hold for the machine that the parameters come from.
// Memories beyond the caches are not modelled: they slow all candidates alike. Where ranks share a core, a hop takes until
// the kernel has switched, which is for who makes the link to say.
func DefaultLink() Link {
	return Link{
		Hop:   250e-9,
		Flag:  25e-9,
		Step:  300e-9,
		Copy:  20e-12,
		Far:   55e-12,
		Claim: 48e-12,
		Fold:  20e-12,
		Store: 14e-12,
	}
}

// Traffic counts what one rank does.
type Traffic struct {
	Steps  int    // stages carried out
	Flags  int    // peers' flags that say filled or reduced, looked at
	Near   uint64 // bytes copied without leaving this rank's memory
	Far    uint64 // bytes taken out of slots where other ranks have put them, to be copied or folded
	Claims uint64 // bytes published into slots that other ranks have read and not written since
	Folded uint64 // bytes of operands folded, this rank's own included
	Stored uint64 // bytes that folds stored to targets after the first
}

func (t *Traffic) add(s Step, p Plan) {
	t.Steps++
	for _, w := range s.Waits {
		if w.Counter != Consumed { // known from the last look, as a rule
			t.Flags++
		}
	}
	for _, m := range s.Moves {
		for _, from := range m.From {
			switch {
			case from.Space == Slot && (from.Rank != p.Rank || s.Action == Collect):
				t.Far += from.Len
			case !m.Fold:
				t.Near += from.Len
			}
			if m.Fold {
				t.Folded += from.Len
			}
		}
		if s.Action == Publish && !returns(p) {
			t.Claims += m.To[0].Len
		}
		for _, to := range m.To[1:] {
			t.Stored += to.Len
		}
	}
}

// returns says whether slots come back to this rank's core: the last that was done to them is its own collect.
func returns(p Plan) bool {
	for _, s := range p.Stages {
		if s.Action == Collect {
			return true
		}
	}
	return false
}

// Count adds up what a plan does for a collective of that many bytes. Its time is proportional to the chunks.
func Count(p Plan, bytes uint64) Traffic {
	var t Traffic
	for s := range Concrete(p, bytes) {
		t.add(s, p)
	}
	return t
}

// Femto is time in femtoseconds. Prices are sums of whole numbers, so that ranks on different processors, whose
// compilers may fuse a multiplication and an addition of floats, come to the same choice.
type Femto int64

// Never is the price of what cannot finish, or takes longer than can be said.
const Never = Femto(math.MaxInt64)

// Duration rounds up to nanoseconds.
func (f Femto) Duration() time.Duration {
	if f == Never {
		return math.MaxInt64
	}
	return time.Duration((f-1)/1_000_000 + 1)
}

func toFemto(seconds float64) Femto { return Femto(math.Round(seconds * 1e15)) }

type femtoLink struct{ hop, flag, step, copy, far, claim, fold, store Femto }

func (l Link) femto() femtoLink {
	return femtoLink{toFemto(l.Hop), toFemto(l.Flag), toFemto(l.Step), toFemto(l.Copy), toFemto(l.Far), toFemto(l.Claim),
		toFemto(l.Fold), toFemto(l.Store)}
}

func (l femtoLink) price(t Traffic) Femto {
	return Femto(t.Steps)*l.step + Femto(t.Flags)*l.flag +
		Femto(t.Near)*l.copy + Femto(t.Far)*l.far + Femto(t.Claims)*l.claim + Femto(t.Folded)*l.fold + Femto(t.Stored)*l.store
}

// simulatedChunks is how much of a collective is played through. What waiting there is repeats itself well within it:
// a rank cannot be ahead by more than the slots.
const simulatedChunks = 16

// Price predicts the time from the moment at which all ranks enter the collective until the last one is done. The
// steps of the root and of one other rank are played against each other: a step begins when the rank is free and the
// flags it waits for have had a hop's time to arrive, so waits hidden by the pipeline cost nothing. Beyond a number of
// chunks the time per chunk is constant and is multiplied out. A plan that cannot finish gets the largest duration.
func Price(plans []Plan, bytes uint64, link Link) time.Duration {
	return NewPricer(plans, link).Price(bytes).Duration()
}

// Pricer is [Price] of one plan for many lengths. It plays each length once: those beyond the simulated chunks have
// most of what is played in common. One goroutine at a time may use it.
type Pricer struct {
	plan   Plan
	link   femtoLink
	cast   roles
	played map[uint64]Femto // by length
}

// NewPricer prices the plans of all ranks of the group of p.
func NewPricer(plans []Plan, link Link) *Pricer {
	return &Pricer{plans[0], link.femto(), rolesOf(plans), map[uint64]Femto{}}
}

func (r *Pricer) play(bytes uint64) Femto {
	t, ok := r.played[bytes]
	if !ok {
		t = r.cast.play(bytes, r.link)
		r.played[bytes] = t
	}
	return t
}

// Price predicts what [Price] does, unrounded.
func (r *Pricer) Price(bytes uint64) Femto {
	chunks, chunk, head := r.plan.Chunks(bytes), uint64(r.plan.Chunk), uint64(r.plan.Head)
	if chunks <= simulatedChunks {
		return r.play(bytes)
	}
	tail := bytes - (chunks-1)*chunk // with the head
	begin := r.play((simulatedChunks-1)*chunk + tail)
	all, half := r.play(head+simulatedChunks*chunk), r.play(head+simulatedChunks/2*chunk)
	if begin == Never || all == Never {
		return Never
	}
	each := max(1, (all-half)/(simulatedChunks/2))
	rest := chunks - simulatedChunks
	if rest >= uint64((Never-begin)/each) {
		return Never
	}
	return begin + Femto(rest)*each
}

// Count is the most that a rank does in a collective of that many bytes; see [Traffic]. Whole chunks are counted once
// and multiplied.
func (r *Pricer) Count(bytes uint64) (most Traffic) {
	for _, p := range r.cast.plans {
		chunks, chunk, head := p.Chunks(bytes), uint64(p.Chunk), uint64(p.Head)
		t := Traffic{}
		if chunks <= 2 {
			t.join(Count(p, bytes), 1)
		} else {
			t.join(Count(p, bytes-(chunks-2)*chunk), 1)
			t.join(Count(p, head+2*chunk), int(chunks-2))
			t.join(Count(p, head+chunk), -int(chunks-2))
		}
		most = Traffic{
			Steps: max(most.Steps, t.Steps), Flags: max(most.Flags, t.Flags), Near: max(most.Near, t.Near),
			Far:    max(most.Far, t.Far),
			Claims: max(most.Claims, t.Claims), Folded: max(most.Folded, t.Folded), Stored: max(most.Stored, t.Stored),
		}
	}
	return most
}

// join adds a number of times what another one counts, or takes it away.
func (t *Traffic) join(other Traffic, times int) {
	n := uint64(times) // modulo 2^64, as the sums are
	t.Steps += times * other.Steps
	t.Flags += times * other.Flags
	t.Near += n * other.Near
	t.Far += n * other.Far
	t.Claims += n * other.Claims
	t.Folded += n * other.Folded
	t.Stored += n * other.Stored
}

// roles are the plans that stand for all ranks, see [Pricer].
type roles struct {
	plans []Plan
	root  int // the rank of plans[0]; -1 where one plan stands for all ranks
}

func rolesOf(plans []Plan) roles {
	if len(plans) == 1 {
		return roles{plans, -1}
	}
	return roles{plans, plans[0].Rank}
}

func (r roles) roleOf(rank int) int {
	if rank == r.root || r.root < 0 {
		return 0
	}
	return 1
}

// play returns the time at which the last role is done.
func (r roles) play(bytes uint64, link femtoLink) Femto {
	type actor struct {
		steps  []Step
		next   int
		now    Femto
		posted [2][counters][]Femto // by lane and chunk, 0: not yet; a post is never at time 0
	}
	actors := make([]actor, len(r.plans))
	for i, p := range r.plans {
		for s := range Concrete(p, bytes) {
			actors[i].steps = append(actors[i].steps, s)
		}
		for c := range counters {
			actors[i].posted[SmallLane][c] = make([]Femto, max(1, p.Chunks(bytes)))
			actors[i].posted[LargeLane][c] = make([]Femto, p.Chunks(bytes))
		}
	}
	// ready is when all that a step waits for has arrived, false when some of it has not been posted.
	ready := func(s Step) (at Femto, ok bool) {
		for _, w := range s.Waits {
			if w.Chunk < 0 {
				continue
			}
			posted := actors[r.roleOf(w.Rank)].posted[s.Lane][w.Counter][w.Chunk]
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
				var t Traffic
				t.add(s, r.plans[i])
				a.now = max(1, max(a.now, at)+link.price(t))
				for _, c := range s.Posts {
					a.posted[s.Lane][c][s.Chunk] = a.now
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
