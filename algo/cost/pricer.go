package cost

import (
	"math"
	"math/bits"
	"time"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Unpriced is the time of a collective that cannot be predicted or takes longer than a duration can hold.
const Unpriced = time.Duration(math.MaxInt64)

// playedChunks is the number of chunks of a collective that are played. A rank cannot be ahead of its neighbours by more than
// the messages that channels hold, so by then each chunk takes equally long, and the time of the rest is multiplied.
const playedChunks = 8

// Bounds of the effort of a price: the number of regions that the plans of all played ranks name. Each takes some tenths
// of a microsecond to be made and played.
const (
	playedRegions = 1 << 16 // of groups in which all ranks are played, see playsAll
	mostRegions   = 3 << 16 // of others; a flat ring over 512 hosts of 8 ranks has 164,000
)

// fewRanks is the number of ranks up to which playing all of them takes milliseconds.
const fewRanks = 64

// between is the factor between played lengths where links are of several classes or ranks differ. The time of a chunk is
// the maximum of sums that grow with its length, so it lies close to the straight line between two played lengths.
const between = 16

// Pricer computes [Price] for one algorithm in one group and many lengths. Where ranks are alike, it plays one of them for
// all. It plays only a part of long collectives. One goroutine at a time may use it.
type Pricer struct {
	group    plan.Group
	costs    Costs
	quotient *quotient                // nil: all ranks are played
	first    plan.SendRecvPlan        // plan of rank 0
	inner    plan.SendRecvPlan        // plan of a rank in the middle, which in trees is neither a leaf nor the root
	prepared *Prepared                // of all played ranks; nil: not made yet, or too long
	tooLong  bool                     // the plans have too many regions
	played   map[uint64]time.Duration // by length
	full     time.Duration            // time for which a rank is busy with a full chunk
	work     int
	left     *int // work that may still be done, see Within; nil: no bound
}

// TooLong reports whether the plans that a [Pricer] of a group would have to play are certainly too long, from a few of
// them.
func TooLong(g plan.Group, c Costs) bool {
	if q := usedQuotient(g, c); q != nil {
		return sampled(g, q.players, mostRegions)
	}
	if !playsAll(g, c) {
		all := make([]int, g.Size)
		for rank := range all {
			all[rank] = rank
		}
		return sampled(g, all, mostRegions)
	}
	// The first and the last rank have about as many regions as the others, or more.
	return max(regions(g.Build(0)), regions(g.Build(g.Size-1)))*g.Size > playedRegions
}

// sampled reports whether each of a few of some ranks has more regions than its part of a number.
func sampled(g plan.Group, ranks []int, most int) bool {
	n := len(ranks)
	// In trees and pairings, some of these have short plans.
	for _, i := range []int{0, min(1, n-1), n / 2, (n/2 + 1) % n, n - 1} {
		if regions(g.Build(ranks[i])) <= most/n {
			return false
		}
	}
	return true
}

// playsAll reports whether ranks are played one by one unless all of them are alike: in small groups, and where links are
// of one class.
func playsAll(g plan.Group, c Costs) bool { return g.Size <= fewRanks || len(c.Links) == 1 }

// usedQuotient returns the quotient by which a group is played, or nil.
func usedQuotient(g plan.Group, c Costs) *quotient {
	if len(c.Links) > 1 && g.Size <= fewRanks {
		return nil
	}
	return quotientOf(g, c)
}

// NewPricer prices the plans of all ranks of a group.
func NewPricer(g plan.Group, c Costs) *Pricer {
	r := &Pricer{group: g, costs: c, first: g.Build(0), inner: g.Build(g.Size / 2), played: map[uint64]time.Duration{}}
	if r.first.Chunk%(r.first.Pieces*plan.Unit) == 0 { // else the messages of some ranks are longer
		r.quotient = usedQuotient(g, c)
	}
	r.full = r.busy(uint64(r.first.Chunk))
	return r
}

// Priced reports whether there are prices. There are if the ranks that have to be played have few regions.
func (r *Pricer) Priced() bool {
	if r.prepared == nil && !r.tooLong {
		r.prepare()
	}
	return !r.tooLong
}

// prepare builds the plans of the ranks that are played, unless they are too long.
func (r *Pricer) prepare() {
	most := mostRegions
	if r.quotient == nil && playsAll(r.group, r.costs) {
		most = math.MaxInt
		if r.tooLong = TooLong(r.group, r.costs); r.tooLong {
			return
		}
	}
	all := 0
	r.prepared, all = prepareUpTo(most, r.group, r.quotient, false)
	r.tooLong = r.prepared == nil || !r.afford(all)
}

// Work returns a measure of what the prices have cost so far: the regions that were built and the steps that were
// played. Each takes about two tenths of a microsecond.
func (r *Pricer) Work() int { return r.work }

// Within bounds the work: pricers that share a number subtract theirs from it, and what would exceed it has no price.
func (r *Pricer) Within(left *int) { r.left = left }

// afford takes some work from what is left. It reports whether there is enough.
func (r *Pricer) afford(work int) bool {
	if r.left != nil {
		if *r.left < work {
			return false
		}
		*r.left -= work
	}
	r.work += work
	return true
}

// Plan returns the plan of rank 0.
func (r *Pricer) Plan() plan.SendRecvPlan { return r.first }

// Peers returns the number of ranks with which one in the middle, which is no root, exchanges messages.
func (r *Pricer) Peers() int { return r.inner.Peers() }

// Largest returns the length of the longest message of any rank.
func (r *Pricer) Largest() (largest int) {
	for _, p := range r.told() {
		largest = max(largest, p.Largest())
	}
	return largest
}

// told returns the plans of a few ranks, among them the one with the longest message and the one with the most work.
func (r *Pricer) told() (plans []plan.SendRecvPlan) {
	if r.group.Telling == nil {
		for rank := range r.group.Size {
			plans = append(plans, r.group.Build(rank))
		}
	}
	for _, rank := range r.group.Telling {
		plans = append(plans, r.group.Build(rank))
	}
	return plans
}

// Price predicts the time of [Price]. It is within a few percent for lengths of many chunks and for lengths whose pieces
// differ, and exact otherwise. It returns [Unpriced] where too many ranks have too many messages each.
func (r *Pricer) Price(bytes uint64) time.Duration {
	chunk := uint64(r.first.Chunk)
	chunks := r.first.Chunks(plan.Lengths{Bytes: bytes})
	switch {
	case chunks == 1 && (r.quotient == nil || len(r.costs.Links) > 1) && bytes > plan.Unit && r.first.Kind != coll.Barrier:
		return r.interpolate(bytes)
	case r.first.Kind == coll.Barrier || chunks <= playedChunks:
		return r.play(bytes)
	}
	tail := bytes - (chunks-1)*chunk
	begin := r.play((playedChunks-1)*chunk + tail)
	all, half := r.play(playedChunks*chunk), r.play(playedChunks/2*chunk)
	if begin == Unpriced || all == Unpriced || half == Unpriced {
		return Unpriced
	}
	each, rest := max(1, (all-half)/(playedChunks/2)), chunks-playedChunks
	if rest >= uint64((Unpriced-begin)/each) {
		return Unpriced
	}
	return begin + time.Duration(rest)*each
}

// interpolate prices a chunk from two that are played.
func (r *Pricer) interpolate(bytes uint64) time.Duration {
	even, low := uint64(r.first.Pieces*plan.Unit), uint64(plan.Unit)
	high := low
	for high < bytes {
		low, high = high, high*between
		if low < even && even < high { // from here on pieces grow
			high = even
		}
	}
	high = min(high, uint64(r.first.Chunk))
	from := r.play(low)
	if high <= low || from == Unpriced {
		return from
	}
	to := r.play(high)
	if to == Unpriced {
		return to
	}
	above, below := bits.Mul64(uint64(max(0, to-from)), bytes-low)
	part, _ := bits.Div64(above, below, high-low)
	return from + time.Duration(part)
}

// play plays a length, or returns the time of an earlier play of the same length.
func (r *Pricer) play(bytes uint64) time.Duration {
	if even := uint64(r.first.Pieces * plan.Unit); r.quotient != nil && bytes > uint64(r.first.Chunk) {
		// In a last chunk with fewer units than pieces some ranks have nothing to send, so ranks are not alike there.
		bytes = (bytes + even - 1) / even * even
	}
	t, known := r.played[bytes]
	if known {
		return t
	}
	if !r.Priced() {
		return Unpriced
	}
	if !r.afford(r.prepared.steps * int(r.first.Chunks(plan.Lengths{Bytes: bytes}))) {
		return Unpriced
	}
	o, err := r.prepared.Play(r.first.Chunk, bytes, r.costs)
	if t = o.Time; err != nil {
		t = Unpriced
	}
	r.played[bytes] = t
	return t
}

// busy returns how long the busier of two ranks works in a collective of one chunk.
func (r *Pricer) busy(bytes uint64) time.Duration {
	busy := r.busyWith(r.first, bytes)
	if (r.quotient == nil || len(r.quotient.players) > 1) && r.group.Size > 1 {
		busy = max(busy, r.busyWith(r.inner, bytes))
	}
	return busy
}

// busyWith returns the longest of a rank's own work and of the time that its links of each class need in each direction.
func (r *Pricer) busyWith(p plan.SendRecvPlan, bytes uint64) time.Duration {
	l := plan.Lengths{Bytes: bytes}
	directions := make([][2]Femto, len(r.costs.Links))
	var work Femto
	for i := range p.Steps {
		s := &p.Steps[i]
		moved := p.Moved(s, 0, l)
		if s.Idle(0, moved) {
			continue
		}
		if s.Op == plan.RecvReduce || s.Op == plan.Reduce {
			work += Femto(moved) * toFemto(r.costs.Reduce)
		}
		if s.Op > plan.RecvReduce {
			continue
		}
		direction, class := 0, 0
		if s.Op != plan.Send {
			direction = 1
		}
		if r.costs.Class != nil {
			class = r.costs.Class(p.Rank, s.Peer)
		}
		work += toFemto(r.costs.Links[class].Step)
		directions[class][direction] += Femto(moved) * toFemto(r.costs.Links[class].Byte)
	}
	for _, d := range directions {
		work = max(work, d[0], d[1])
	}
	return time.Duration(work / 1_000_000)
}

// AtLeast returns a lower bound of [Pricer.Price] without any play: the time of one rank's work, or of the bytes that
// leave it or come to it. A search for the cheapest algorithm need not price an algorithm whose bound is higher than a known
// price.
func (r *Pricer) AtLeast(bytes uint64) time.Duration {
	least, times := r.full, bytes/uint64(r.first.Chunk)
	if times == 0 || r.first.Kind == coll.Barrier {
		least, times = r.busy(bytes), 1
	}
	if least > 0 && times >= uint64(Unpriced/least) {
		return Unpriced
	}
	return least * time.Duration(times)
}

// Count returns the largest counts of any rank. It counts a whole chunk once and multiplies.
func (r *Pricer) Count(bytes uint64) (most Traffic) {
	for _, p := range r.told() {
		chunks, chunk := p.Chunks(plan.Lengths{Bytes: bytes}), uint64(p.Chunk)
		t := Traffic{}
		if chunks <= 3 || r.first.Kind == coll.Barrier { // messages of no bytes are left out in all chunks but the first
			t.join(Count(p, plan.Lengths{Bytes: bytes}), 1)
		} else {
			t.join(Count(p, plan.Lengths{Bytes: bytes - (chunks-3)*chunk}), 1)
			t.join(Count(p, plan.Lengths{Bytes: 2 * chunk}), int(chunks-3))
			t.join(Count(p, plan.Lengths{Bytes: chunk}), -int(chunks-3))
		}
		most = Traffic{
			Sends: max(most.Sends, t.Sends), Recvs: max(most.Recvs, t.Recvs), Sent: max(most.Sent, t.Sent),
			Received: max(most.Received, t.Received), Reduced: max(most.Reduced, t.Reduced), Copied: max(most.Copied, t.Copied),
		}
	}
	return most
}
