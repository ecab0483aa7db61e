// Why a choice is what it is.

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

// Describe tells the classes of a kind in the grammar of [ParseTune], and where each comes from.
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

// origin says where the choice for a length comes from.
func (s *Selector) origin(kind coll.Kind, bytes uint64) string {
	if s.shape.Size == 1 {
		return "the only one"
	}
	if r, ok := s.rule(kind, bytes); ok {
		return r.from
	}
	return "predicted"
}

// Candidate is one way to carry a collective out.
type Candidate struct {
	Algorithm string
	Transport Transport
	Slots     plan.Slots
	Chunk     int
	Predicted time.Duration
	AtLeast   bool // Predicted is a bound only: there are too many ranks with too many messages each
	// Steps are the most that one rank carries out: stages on chunks, or messages that it sends or that it takes,
	// whichever are more.
	Steps int
	// Bytes are the most that one rank moves to or from others.
	Bytes   uint64
	Longest int  // chunk that there can be
	Even    bool // it needs blocks of equal length
	Chosen  bool
	Forced  bool   // chosen by a rule, not by its price
	Why     string // it is chosen, or it is not
}

// Explain returns all candidates for a message, cheapest first and those without a price
// last, with the one that is used marked. The prediction for
// a class was made at a few lengths, so close to a boundary the chosen one may not be the first.
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

// alternatives are the classes that a length could have had.
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

// candidate is a class with what it is predicted to take.
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
		return one // the class was made of it
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

// rejected says why a candidate is not the one that is chosen.
func rejected(kind coll.Kind, c, chosen Candidate) string {
	switch {
	case c.Even:
		return "needs blocks of equal length, so only a rule can set it"
	case chosen.Forced:
		return "not what is set"
	case c.AtLeast:
		return "too many messages to be predicted: a rule can set it"
	case c.Predicted >= chosen.Predicted:
		return fmt.Sprintf("%s as long as %s", times(c.Predicted, chosen.Predicted), chosen.Algorithm)
	case c.Transport == Channels && chosen.Transport == Slots && kind.Reduces():
		return "adds in another order than that of the ranks, so only a rule can set it where they share memory"
	case c.Transport == Channels && chosen.Transport == Slots:
		return fmt.Sprintf("channels must take %d %% less than slots to be chosen", margin)
	}
	return "cheaper here, but not at the lengths for which the class was judged"
}

// times writes a ratio.
func times(a, b time.Duration) string {
	return strconv.FormatFloat(float64(a)/float64(max(1, b)), 'f', 2, 64) + " times"
}
