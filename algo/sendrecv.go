package algo

import (
	"fmt"
	"sort"
	"time"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// sendRecvCandidate is a sendrecv algorithm with a chunk, and its price.
type sendRecvCandidate struct {
	class  Class
	pricer *cost.Pricer
}

// bounded reports whether the lower bound of a price, which is the time of one rank's work, is close to the price: the
// plan has few steps, or all ranks do as much.
func (s sendRecvCandidate) bounded(kind coll.Kind) bool {
	return sendrecv.Logarithmic(kind, s.class.Algorithm) || sendrecv.Turns(kind, s.class.Algorithm)
}

// sendRecvKey identifies a candidate.
type sendRecvKey struct {
	kind  coll.Kind
	name  string
	chunk int
}

// sendRecvCandidates returns the sendrecv algorithms that a group can use, in the order in which the package sendrecv
// lists them. Hierarchical ones need several hosts with equally many ranks. With short it leaves out plans that are
// certainly too long to have a price.
func (p *predictor) sendRecvCandidates(kind coll.Kind, short bool) (list []sendRecvCandidate) {
	if p.shape.Size == 1 {
		return nil
	}
	for _, name := range sendrecv.Algorithms(kind) {
		if name == sendrecv.Hierarchical && !p.shape.rails() || short && p.tooLong(kind, name) {
			continue
		}
		for _, chunk := range p.chunks(kind, name) {
			if s, err := p.sendRecvCandidate(kind, name, chunk); err == nil {
				list = append(list, s)
			}
		}
	}
	return list
}

// chunks returns the chunks with which an algorithm is tried: the longest one, for which 0 stands, and where messages may be long, one with messages that are as
// short as on one host, so that ranks that pass on what they receive begin earlier.
func (p *predictor) chunks(kind coll.Kind, name string) []int {
	if !p.shape.HasLongMessages() {
		return []int{0}
	}
	short, err := sendrecv.LongestChunk(kind, name, p.shape.place(name, 0, 0, 0), plan.MessageBytes)
	if err != nil {
		return []int{0}
	}
	return []int{0, short}
}

// tooLong reports whether an algorithm certainly has no price.
func (p *predictor) tooLong(kind coll.Kind, name string) bool {
	group, err := sendrecv.Plans(kind, name, p.shape.place(name, 0, 0, 0))
	return err == nil && cost.TooLong(group, p.costs)
}

// sendRecvCandidate returns an algorithm with a chunk. A chunk of 0 stands for the longest one whose messages a channel
// can carry. It refuses a chunk whose messages are too long.
func (p *predictor) sendRecvCandidate(kind coll.Kind, name string, chunk int) (sendRecvCandidate, error) {
	key := sendRecvKey{kind, name, chunk}
	if known, ok := p.known[key]; ok {
		return known, nil
	}
	longest, err := sendrecv.LongestChunk(kind, name, p.shape.place(name, 0, 0, 0), p.shape.messageBytes())
	if err != nil {
		return sendRecvCandidate{}, err
	}
	if chunk == 0 {
		chunk = longest
	}
	group, err := sendrecv.Plans(kind, name, p.shape.place(name, 0, 0, chunk))
	if err != nil {
		return sendRecvCandidate{}, err
	}
	pricer := cost.NewPricer(group, p.costs)
	pricer.Within(p.left)
	got := 0 // messages of the longest chunk fit
	if chunk != longest {
		got = pricer.Largest()
	}
	if got > p.shape.messageBytes() {
		return sendRecvCandidate{}, fmt.Errorf(
			"chunks of %d bytes would make messages of %d: a channel takes %d, so chunks are at most %d among %s",
			chunk, got, p.shape.messageBytes(), longest, coll.Count(p.shape.Size, "rank"))
	}
	first := pricer.Plan()
	if n := first.Channels(); n > plan.ChannelsPerPair {
		return sendRecvCandidate{}, fmt.Errorf("%s uses %d channels between two ranks, there are %d", name, n, plan.ChannelsPerPair)
	}
	class := Class{UpTo: NoLimit, Algorithm: name, Transport: Channels, Chunk: chunk, Even: first.Even}
	p.known[key] = sendRecvCandidate{class, pricer}
	return p.known[key], nil
}

// faster returns the cheapest of some candidates for a length, if it takes less than a limit. It does not price
// candidates whose lower bound exceeds the limit, and it begins with the lowest bounds, so that it prices few. The
// algorithm named before, that of shorter lengths, stays unless another one saves more than the error of prices.
func faster(list []sendRecvCandidate, bytes uint64, limit time.Duration, before string) (best sendRecvCandidate, found bool) {
	least := make([]time.Duration, len(list))
	order := make([]int, len(list))
	for i, s := range list {
		order[i], least[i] = i, s.pricer.AtLeast(bytes)
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, b := order[i], order[j]
		if first := list[a].class.Algorithm == before; first != (list[b].class.Algorithm == before) {
			return first
		}
		return least[a] < least[b]
	})
	var price time.Duration // of the best one
	for _, i := range order {
		s := list[i]
		most := limit
		if found && s.class.Algorithm == best.class.Algorithm { // of its chunks the longer one, unless the shorter one saves more than that
			if s.class.Chunk > best.class.Chunk {
				most = price + price/exact
			} else {
				most = price - price/exact
			}
		}
		if least[i] >= most {
			continue
		}
		if t := s.pricer.Price(bytes); t < most {
			best, price, limit, found = s, t, t, true
			if s.class.Algorithm == before {
				limit -= t / exact
			}
		}
	}
	return best, found
}

// exact is the reciprocal of the saving, 2 %, below which another plan is not chosen: prices are not more exact. What a message costs a process
// beside its bytes is hidden behind the link in a price, and not in time: so of two chunks the longer one is better where prices are alike.
const exact = 50
