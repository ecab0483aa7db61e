// Prices of one algorithm for many lengths: what a choice between algorithms asks for.

package message

import (
	"math"
	"time"

	"sagecomm/internal/coll"
)

// Unpriced is the time of what cannot be predicted or takes longer than can be said.
const Unpriced = time.Duration(math.MaxInt64)

// playedChunks is how much of a collective is played through. A rank cannot be ahead of its neighbours by more than the
// messages that channels hold, so a pipeline has its pace by then, and what follows is a matter of multiplication.
const playedChunks = 8

// playedMessages bounds what a price may cost: steps of a chunk, of all ranks. They take some tenths of a microsecond
// each, to be made and to be played.
const playedMessages = 1 << 17

// Pricer is [Price] of one algorithm in one group, for many lengths. Where all ranks are alike it plays one of them;
// long collectives it plays in part. One goroutine at a time may use it.
type Pricer struct {
	at        Place
	kind      coll.Kind
	algorithm string
	costs     Costs
	digits    []int // in which ranks are alike, or nil
	first     Plan  // of rank 0
	plans     []Plan
	played    map[uint64]time.Duration // by length
	full      busy                     // with a chunk
}

// NewPricer prices the plans of all ranks of a place; its rank does not matter.
func NewPricer(kind coll.Kind, algorithm string, at Place, c Costs) (*Pricer, error) {
	at.Rank = 0
	first, err := Build(kind, algorithm, at)
	if err != nil {
		return nil, err
	}
	r := &Pricer{at: at, kind: kind, algorithm: algorithm, costs: c, first: first, played: map[uint64]time.Duration{}}
	if len(c.Links) == 1 && at.Chunk%(first.Pieces*Unit) == 0 { // else the messages of some ranks are longer
		r.digits = alike(kind, algorithm, at)
	}
	r.full = r.busy(uint64(at.Chunk))
	return r, nil
}

// Plan is the plan of rank 0.
func (r *Pricer) Plan() Plan { return r.first }

// Price predicts what [Price] does, to within a few percent for lengths of many chunks and for those whose pieces are
// not of equal length. It is [Unpriced] where there are too many ranks with too many messages each.
func (r *Pricer) Price(bytes uint64) time.Duration {
	chunk := uint64(r.at.Chunk)
	chunks := r.first.Chunks(Lengths{Bytes: bytes})
	if r.kind == coll.Barrier || chunks <= playedChunks {
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

// make builds the plans of all ranks, unless they have too many messages. What rank 0 has to do, and another one that
// has more where ranks differ, is about what all have.
func (r *Pricer) make() bool {
	if r.plans != nil {
		return true
	}
	for _, rank := range []int{0, r.at.Size - 1} {
		at := r.at
		at.Rank = rank
		if p, err := Build(r.kind, r.algorithm, at); err != nil || len(p.Steps)*r.at.Size > playedMessages {
			return false
		}
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

// busy is what one rank cannot do at the same time.
type busy struct {
	work time.Duration // of the rank itself
	way  time.Duration // of its links, each way
}

func (r *Pricer) busy(bytes uint64) busy {
	link := r.costs.Links[0]
	for _, l := range r.costs.Links[1:] {
		link.Latency, link.Byte, link.Step = min(link.Latency, l.Latency), min(link.Byte, l.Byte), min(link.Step, l.Step)
	}
	t := Count(r.first, Lengths{Bytes: bytes})
	down := func(f femto) time.Duration { return time.Duration(f / 1_000_000) }
	b := busy{work: down(femto(t.Sends+t.Recvs)*toFemto(link.Step) + femto(t.Reduced)*toFemto(r.costs.Reduce))}
	b.way = down(femto(max(t.Sent, t.Received)) * toFemto(link.Byte))
	return b
}

// AtLeast is a time that [Pricer.Price] is not below, found without any play: that of what rank 0 has to do, and of the
// bytes that leave it or come to it. Whoever looks for the cheapest need not price what has to take longer.
func (r *Pricer) AtLeast(bytes uint64) time.Duration {
	b, times := r.full, bytes/uint64(r.at.Chunk)
	if times == 0 || r.kind == coll.Barrier {
		b, times = r.busy(bytes), 1
	}
	least := max(b.work, b.way)
	if least > 0 && times >= uint64(Unpriced/least) {
		return Unpriced
	}
	return least * time.Duration(times)
}

// Count is the most that a rank does, among those that have most to do; see [Traffic].
func (r *Pricer) Count(bytes uint64) (most Traffic) {
	for _, rank := range telling(r.kind, r.algorithm, r.at) {
		at := r.at
		at.Rank = rank
		p, err := Build(r.kind, r.algorithm, at)
		if err != nil {
			continue // ranks of one place are alike in this
		}
		t := Count(p, Lengths{Bytes: bytes})
		most = Traffic{
			Sends: max(most.Sends, t.Sends), Recvs: max(most.Recvs, t.Recvs), Sent: max(most.Sent, t.Sent),
			Received: max(most.Received, t.Received), Reduced: max(most.Reduced, t.Reduced), Copied: max(most.Copied, t.Copied),
		}
	}
	return most
}
