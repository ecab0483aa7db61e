// Candidates among the plans of messages.

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

// sender is an algorithm of messages with the longest chunk that its messages allow, and its price.
type sendRecvCandidate struct {
	class  Class
	pricer *cost.Pricer
}

type sendRecvKey struct {
	kind  coll.Kind
	name  string
	chunk int
}

// senders are the algorithms of messages that a group can use, in the order of the package's list: hierarchical ones
// where there are several hosts of equally many ranks. priced leaves those out that have no price.
func (p *predictor) sendRecvCandidates(kind coll.Kind, priced bool) (list []sendRecvCandidate) {
	if p.shape.Size == 1 {
		return nil
	}
	for _, name := range sendrecv.Algorithms(kind) {
		if name == sendrecv.Hierarchical && !p.shape.rails() ||
			priced && !p.priced(kind, name) {
			continue
		}
		if s, err := p.sendRecvCandidate(kind, name, 0); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// priced reports whether an algorithm has prices at all.
func (p *predictor) priced(kind coll.Kind, name string) bool {
	group, err := sendrecv.Plans(kind, name, p.shape.place(name, 0, 0, 0))
	return err == nil && cost.Priced(group, p.costs)
}

// sender is one algorithm in chunks of a length, or of the longest one if that is 0. It refuses what channels cannot
// carry.
func (p *predictor) sendRecvCandidate(kind coll.Kind, name string, chunk int) (sendRecvCandidate, error) {
	key := sendRecvKey{kind, name, chunk}
	if known, ok := p.known[key]; ok {
		return known, nil
	}
	longest, err := sendrecv.LongestChunk(kind, name, p.shape.place(name, 0, 0, 0), plan.MessageBytes)
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
	got := 0 // what follows from the longest chunk fits
	if chunk != longest {
		got = pricer.Largest()
	}
	if got > plan.MessageBytes {
		return sendRecvCandidate{}, fmt.Errorf(
			"chunks of %d bytes would make messages of %d: a channel takes %d, so chunks are at most %d among %d ranks",
			chunk, got, plan.MessageBytes, longest, p.shape.Size)
	}
	first := pricer.Plan()
	if n := first.Channels(); n > plan.ChannelsPerPair {
		return sendRecvCandidate{}, fmt.Errorf("%s uses %d channels between two ranks, there are %d", name, n, plan.ChannelsPerPair)
	}
	class := Class{UpTo: NoLimit, Algorithm: name, Transport: Channels, Chunk: chunk, Even: first.Even}
	p.known[key] = sendRecvCandidate{class, pricer}
	return p.known[key], nil
}

// faster returns the cheapest of some senders for a length, if it takes less than a limit. What cannot be below the
// limit by what one rank alone has to do is not priced, and who has least to do comes first, so that few are. The one
// of shorter lengths stays unless another one saves more than prices are exact.
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
	for _, i := range order {
		s := list[i]
		if least[i] >= limit {
			continue
		}
		if t := s.pricer.Price(bytes); t < limit {
			best, limit, found = s, t, true
			if s.class.Algorithm == before {
				limit -= t / exact
			}
		}
	}
	return best, found
}

// exact is the part of a price that is not worth another plan.
const exact = 50
