package algo

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// Describe returns the classes of a kind in the grammar of [ParseTune], each with its origin.
func (s *Selector) Describe(kind coll.Kind) string {
	var parts []string
	from := "0"
	for _, c := range s.classes(kind) {
		to := "inf"
		if c.UpTo != NoLimit {
			to = strconv.FormatUint(c.UpTo, 10)
		}
		parts = append(parts, fmt.Sprintf("%s-%s:%s@chunk=%d (%s)", from, to, c.Algorithm, c.Chunk, s.origin(kind, c.UpTo)))
		from = to
	}
	return fmt.Sprintf("%v: %s", kind, strings.Join(parts, ", "))
}

// origin returns where the choice for a length comes from.
func (s *Selector) origin(kind coll.Kind, bytes uint64) string {
	if s.shape.Size == 1 {
		return "the only one"
	}
	if r, ok := s.rule(kind, bytes); ok {
		return r.from
	}
	return "predicted"
}

// Candidate is an algorithm that a collective could use, with its predicted cost.
type Candidate struct {
	Algorithm string
	Transport Transport
	Slots     plan.Slots
	Chunk     int
	Predicted time.Duration
	AtLeast   bool // the plans have too many messages to be priced, and Predicted is a lower bound
	// Steps is the number of steps of the rank that has most: for a slot plan stages times chunks, for a sendrecv plan
	// the messages sent or the messages taken, whichever are more.
	Steps int
	// Bytes is the number of bytes that the busiest rank moves to or from others.
	Bytes   uint64
	Longest int  // longest possible chunk, in bytes
	Even    bool // the plan needs blocks of equal length
	Chosen  bool
	Forced  bool   // chosen by a rule, not by its price
	Why     string // why it is chosen, or not
}

// Explain returns all candidates for a length, with the chosen one marked: the cheapest first, and those without a
// price last. Classes were predicted at a few lengths only, so close to a boundary the chosen candidate may not be the
// first.
func (s *Selector) Explain(kind coll.Kind, bytes uint64) []Candidate {
	p := newPredictor(s.shape, s.params)
	chosen := s.Choose(kind, bytes)
	list := []Candidate{p.explained(kind, chosen, bytes)}
	first := &list[0]
	first.Chosen, first.Why = true, s.origin(kind, bytes)
	r, forced := s.rule(kind, bytes)
	if first.Forced = forced && s.shape.Size > 1; first.Forced {
		first.Why = fmt.Sprintf("set by %s: %s", r.from, r.text)
	}
	if s.shape.Size > 1 {
		for _, c := range p.alternatives(kind, bytes) {
			if !c.same(chosen) {
				one := p.explained(kind, c, bytes)
				one.Why = rejected(kind, one, *first)
				if !first.Forced && p.crowded(kind, c) && !p.crowded(kind, chosen) {
					one.Why = fmt.Sprintf("a rank exchanges messages with more than %d others, so only a rule can set it", mostPeers)
				}
				list = append(list, one)
			}
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return !a.AtLeast && b.AtLeast || a.AtLeast == b.AtLeast && a.Predicted < b.Predicted
	})
	return list
}

// Predict returns a function that predicts how long a collective takes, by its length, as it is carried out: with the class that
// Choose returns. The function is for one goroutine.
func (s *Selector) Predict(kind coll.Kind) func(bytes uint64) time.Duration {
	p := newPredictor(s.shape, s.params)
	return func(bytes uint64) time.Duration { return p.explained(kind, s.Choose(kind, bytes), bytes).Predicted }
}

// alternatives returns every class that a length could have.
func (p *predictor) alternatives(kind coll.Kind, bytes uint64) (list []Class) {
	if p.shape.sharesMemory() {
		g := gradeOf(kind, p.shape.Size, bytes)
		for _, name := range shmplan.Algorithms(kind) {
			list = append(list, g.class(kind, name))
		}
	}
	for _, s := range p.sendRecvCandidates(kind, false) {
		list = append(list, s.class)
	}
	return list
}

// explained returns a class with its predicted cost.
func (p *predictor) explained(kind coll.Kind, c Class, bytes uint64) Candidate {
	one := Candidate{Algorithm: c.Algorithm, Transport: c.Transport, Slots: c.Slots, Chunk: c.Chunk, Even: c.Even}
	if c.Transport == Slots {
		one.Longest = c.Slots.MaxChunk(kind, p.shape.Size)
		one.Predicted = p.slots.price(kind, c, bytes).Duration()
		if pricer, err := p.slots.pricer(kind, c); err == nil {
			t := pricer.Count(bytes)
			one.Steps, one.Bytes = t.Steps, t.Far
		}
		return one
	}
	s, err := p.sendRecvCandidate(kind, c.Algorithm, c.Chunk)
	if err != nil {
		return one // cannot happen: the class was made from this candidate
	}
	if longest, err := p.sendRecvCandidate(kind, c.Algorithm, 0); err == nil {
		one.Longest = longest.class.Chunk
	}
	one.Predicted = s.pricer.Price(bytes)
	if one.Predicted == cost.Unpriced {
		one.Predicted, one.AtLeast = s.pricer.AtLeast(bytes), true
	}
	t := s.pricer.Count(bytes)
	one.Steps, one.Bytes = max(t.Sends, t.Recvs), max(t.Sent, t.Received)
	return one
}

// rejected returns why a candidate is not chosen.
func rejected(kind coll.Kind, c, chosen Candidate) string {
	switch {
	case c.Even:
		return "needs blocks of equal length, so only a rule can set it"
	case chosen.Forced:
		return "not what is set"
	case c.AtLeast:
		return "it has too many messages for a prediction; a rule can set it"
	case c.Predicted >= chosen.Predicted:
		return fmt.Sprintf("%s as long as %s", times(c.Predicted, chosen.Predicted), chosen.Algorithm)
	case c.Transport == Channels && chosen.Transport == Slots && kind.Reduces():
		return "adds in another order than that of the ranks, so only a rule can set it where ranks share memory"
	case c.Transport == Channels && chosen.Transport == Slots:
		return fmt.Sprintf("channels must take %d %% less than slots to be chosen", margin)
	}
	return "cheaper here, but not at the lengths at which classes are compared"
}

// times returns a ratio as text.
func times(a, b time.Duration) string {
	return strconv.FormatFloat(float64(a)/float64(max(1, b)), 'f', 2, 64) + " times"
}
