// Prices of one algorithm for many lengths: what a choice between algorithms asks for.

package message

import (
	"math"
	"math/bits"
	"time"

	"sagecomm/internal/coll"
)

// Unpriced is the time of what cannot be predicted or takes longer than can be said.
const Unpriced = time.Duration(math.MaxInt64)

// playedChunks is how much of a collective is played through. A rank cannot be ahead of its neighbours by more than the
// messages that channels hold, so a pipeline has its pace by then, and what follows is a matter of multiplication.
const playedChunks = 8

// playedRegions bounds what a price may cost: regions that the steps of all ranks name. They take some tenths of a
// microsecond each, to be made and to be played.
const playedRegions = 1 << 16

// between is the factor between lengths that are played where all ranks have to be: the time of a chunk, as the maximum
// of sums that grow with its length, lies close to the straight line between two of them.
const between = 16

// Priced says whether a [Pricer] has prices of an algorithm: whether ranks are alike, or have few enough messages to be
// played all. The chunk and the rank of the place do not matter.
func Priced(kind coll.Kind, algorithm string, at Place, c Costs) bool {
	if len(c.Links) == 1 && alike(kind, algorithm, at) != nil {
		return true
	}
	// What the first rank has to do, or the last one where ranks differ, is about what all have.
	at.Chunk = Unit
	for _, at.Rank = range []int{0, at.Size - 1} {
		p, err := Build(kind, algorithm, at)
		if err != nil {
			return false
		}
		regions := 0
		for _, s := range p.Steps {
			regions += max(1, len(s.From)+len(s.To))
		}
		if regions*at.Size > playedRegions {
			return false
		}
	}
	return true
}

// Pricer is [Price] of one algorithm in one group, for many lengths. Where all ranks are alike it plays one of them;
// long collectives it plays in part. One goroutine at a time may use it.
type Pricer struct {
	at        Place
	kind      coll.Kind
	algorithm string
	costs     Costs
	digits    []int // in which ranks are alike, or nil
	first     Plan  // of rank 0
	inner     Plan  // of a rank in the middle, which in trees is no leaf and not the root
	plans     []Plan
	played    map[uint64]time.Duration // by length
	full      time.Duration            // that a rank is busy with a chunk
}

// NewPricer prices the plans of all ranks of a place; its rank does not matter.
func NewPricer(kind coll.Kind, algorithm string, at Place, c Costs) (*Pricer, error) {
	at.Rank = 0
	first, err := Build(kind, algorithm, at)
	if err != nil {
		return nil, err
	}
	at.Rank = at.Size / 2
	inner, err := Build(kind, algorithm, at)
	if err != nil {
		return nil, err
	}
	at.Rank = 0
	r := &Pricer{at: at, kind: kind, algorithm: algorithm, costs: c, first: first, inner: inner,
		played: map[uint64]time.Duration{}}
	if len(c.Links) == 1 && at.Chunk%(first.Pieces*Unit) == 0 { // else the messages of some ranks are longer
		r.digits = alike(kind, algorithm, at)
	}
	r.full = r.busy(uint64(at.Chunk))
	return r, nil
}

// Plan is the plan of rank 0.
func (r *Pricer) Plan() Plan { return r.first }

// Largest is the most bytes of a message of any rank.
func (r *Pricer) Largest() (largest int) {
	for _, p := range r.told() {
		largest = max(largest, p.Largest())
	}
	return largest
}

// told are the plans of ranks that tell what is most.
func (r *Pricer) told() (plans []Plan) {
	for _, rank := range telling(r.kind, r.algorithm, r.at) {
		at := r.at
		at.Rank = rank
		if p, err := Build(r.kind, r.algorithm, at); err == nil { // as that of rank 0 could be built
			plans = append(plans, p)
		}
	}
	return plans
}

// Price predicts what [Price] does, to within a few percent for lengths of many chunks and for those whose pieces are
// not of equal length. It is [Unpriced] where there are too many ranks with too many messages each.
func (r *Pricer) Price(bytes uint64) time.Duration {
	chunk := uint64(r.at.Chunk)
	chunks := r.first.Chunks(Lengths{Bytes: bytes})
	switch {
	case chunks == 1 && r.digits == nil && bytes > Unit && r.kind != coll.Barrier:
		return r.interpolate(bytes)
	case r.kind == coll.Barrier || chunks <= playedChunks:
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
	even, low := uint64(r.first.Pieces*Unit), uint64(Unit)
	high := low
	for high < bytes {
		low, high = high, high*between
		if low < even && even < high { // from here on pieces grow
			high = even
		}
	}
	high = min(high, uint64(r.at.Chunk))
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

func (r *Pricer) play(bytes uint64) time.Duration {
	if even := uint64(r.first.Pieces * Unit); r.digits != nil && bytes > uint64(r.at.Chunk) {
		// Of a last chunk with fewer units than pieces some ranks have nothing to send: then they are not alike.
		bytes = (bytes + even - 1) / even * even
	}
	t, known := r.played[bytes]
	if known {
		return t
	}
	size, build := r.at.Size, r.plan
	if r.digits != nil {
		quotient := r.first.forAll(r.digits)
		size, build = 1, func(int) Plan { return quotient }
	} else if !r.make() {
		return Unpriced
	}
	t, err := Price(size, build, Lengths{Bytes: bytes}, r.costs)
	if err != nil {
		t = Unpriced
	}
	r.played[bytes] = t
	return t
}

func (r *Pricer) plan(rank int) Plan { return r.plans[rank] }

// make builds the plans of all ranks, unless they have too many messages.
func (r *Pricer) make() bool {
	if r.plans != nil {
		return true
	}
	if !Priced(r.kind, r.algorithm, r.at, r.costs) {
		return false
	}
	for rank := range r.at.Size {
		at := r.at
		at.Rank = rank
		p, err := Build(r.kind, r.algorithm, at)
		if err != nil {
			r.plans = nil
			return false
		}
		r.plans = append(r.plans, p)
	}
	return true
}

// busy is the longest of what either of two ranks has to do one after the other in a collective of one chunk.
func (r *Pricer) busy(bytes uint64) time.Duration {
	busy := r.busyWith(r.first, bytes)
	if r.digits == nil && r.at.Size > 1 {
		busy = max(busy, r.busyWith(r.inner, bytes))
	}
	return busy
}

// busyWith is the longest of a rank's own work and of what its links of each class carry each way.
func (r *Pricer) busyWith(p Plan, bytes uint64) time.Duration {
	l := Lengths{Bytes: bytes}
	ways := make([][2]femto, len(r.costs.Links))
	var work femto
	for i := range p.Steps {
		s := &p.Steps[i]
		moved := p.moves(s, 0, l)
		if s.idle(0, moved) {
			continue
		}
		if s.Op == RecvReduce || s.Op == Reduce {
			work += femto(moved) * toFemto(r.costs.Reduce)
		}
		if s.Op > RecvReduce {
			continue
		}
		way, class := 0, 0
		if s.Op != Send {
			way = 1
		}
		if r.costs.Class != nil {
			class = r.costs.Class(p.Rank, s.Peer)
		}
		work += toFemto(r.costs.Links[class].Step)
		ways[class][way] += femto(moved) * toFemto(r.costs.Links[class].Byte)
	}
	for _, way := range ways {
		work = max(work, way[0], way[1])
	}
	return time.Duration(work / 1_000_000)
}

// AtLeast is a time that [Pricer.Price] is not below, found without any play: that of what one rank has to do, or of
// the bytes that leave it or come to it. Whoever looks for the cheapest need not price what has to take longer.
func (r *Pricer) AtLeast(bytes uint64) time.Duration {
	least, times := r.full, bytes/uint64(r.at.Chunk)
	if times == 0 || r.kind == coll.Barrier {
		least, times = r.busy(bytes), 1
	}
	if least > 0 && times >= uint64(Unpriced/least) {
		return Unpriced
	}
	return least * time.Duration(times)
}

// Count is the most that a rank does; see [Traffic]. Whole chunks are counted once and multiplied.
func (r *Pricer) Count(bytes uint64) (most Traffic) {
	for _, p := range r.told() {
		chunks, chunk := p.Chunks(Lengths{Bytes: bytes}), uint64(p.Chunk)
		t := Traffic{}
		if chunks <= 3 || r.kind == coll.Barrier { // what is left out for want of bytes is left out after the first
			t.join(Count(p, Lengths{Bytes: bytes}), 1)
		} else {
			t.join(Count(p, Lengths{Bytes: bytes - (chunks-3)*chunk}), 1)
			t.join(Count(p, Lengths{Bytes: 2 * chunk}), int(chunks-3))
			t.join(Count(p, Lengths{Bytes: chunk}), -int(chunks-3))
		}
		most = Traffic{
			Sends: max(most.Sends, t.Sends), Recvs: max(most.Recvs, t.Recvs), Sent: max(most.Sent, t.Sent),
			Received: max(most.Received, t.Received), Reduced: max(most.Reduced, t.Reduced), Copied: max(most.Copied, t.Copied),
		}
	}
	return most
}

// join adds a number of times what another one counts, or takes it away.
func (t *Traffic) join(other Traffic, times int) {
	n := uint64(times) // modulo 2^64, as the sums are
	t.Sends += times * other.Sends
	t.Recvs += times * other.Recvs
	t.Sent += n * other.Sent
	t.Received += n * other.Received
	t.Reduced += n * other.Reduced
	t.Copied += n * other.Copied
}
