// From measurements to rules: what `python -m sagecomm tune` writes into a file.

package algo

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// Measured is what one way to carry a collective out took in a group.
type Measured struct {
	Kind      coll.Kind
	Bytes     uint64 // as [Selector.Choose] counts them
	Algorithm string
	Chunk     int     // 0: as predicted
	Seconds   float64 // a call, as users see it
	Ratio     float64 // to what the selector's own choice took in the same rounds
}

// worth is what a choice must gain over the predicted one, and a change between two lengths over no change, as a factor
// of time at one length: below that the same two algorithms change places from one measurement to the next.
const worth = 1.03

// free is up to which price of a change those that the prediction makes, too, cost nothing.
const free = 1

// Tuned is the entry of a tuning file that follows from measurements in a group on a machine. It has rules for all
// lengths of the kinds that were measured, and the parameters that predict best what was measured, for the other
// kinds. Plans that need blocks of equal length get no rule: only a user knows that they are.
func (s *Selector) Tuned(machine string, list []Measured) (Entry, error) {
	e := Entry{Machine: machine, Size: s.shape.Size, Hosts: s.shape.HostCount(), Params: map[string]string{}}
	p := newPredictor(s.shape, s.params)
	for _, m := range list {
		if err := p.check(m); err != nil {
			return e, err
		}
	}
	for kind := range coll.KindCount {
		of := slices.DeleteFunc(slices.Clone(list), func(m Measured) bool { return m.Kind != kind })
		if len(of) == 0 {
			continue
		}
		rules, err := s.measured(kind, of)
		if err != nil {
			return e, err
		}
		for _, r := range rules {
			e.Rules = append(e.Rules, r.String())
		}
	}
	for _, one := range s.fit(list) {
		e.Params[one.Name] = one.text()
	}
	return e, nil
}

// check refuses what cannot have been measured.
func (p *predictor) check(m Measured) error {
	if !m.Kind.Collective() || !slices.Contains(Algorithms(m.Kind), m.Algorithm) {
		return fmt.Errorf("measured: %v has no algorithm %q", m.Kind, m.Algorithm)
	}
	if !(m.Seconds > 0 && m.Seconds < math.MaxFloat64 && m.Ratio > 0 && m.Ratio < math.MaxFloat64) {
		return fmt.Errorf("measured: %v %s of %d bytes took %g s, %g times what was chosen: expected more than 0",
			m.Kind, m.Algorithm, m.Bytes, m.Seconds, m.Ratio)
	}
	_, err := p.ruled(Rule{Kind: m.Kind, To: NoLimit, Algorithm: m.Algorithm, Chunk: m.Chunk}, m.Bytes)
	return err
}

// way is a candidate of a rule.
type ruleCandidate struct {
	algorithm string
	chunk     int
}

// measured are the rules of one kind: the sequence of ways, one for each length, that costs least. What a length costs
// is the logarithm of its ratio, so that all lengths weigh alike, and a change from one length to the next costs a
// little, and so does what is not predicted. The sequence is found by dynamic programming (Viterbi, "Error bounds for
// convolutional codes", 1967).
func (s *Selector) measured(kind coll.Kind, list []Measured) ([]Rule, error) {
	lengths, ways := s.axes(kind, list)
	if len(ways) == 0 {
		return nil, fmt.Errorf("measured: no %v that takes blocks of any length", kind)
	}
	costs := make([][]float64, len(lengths))
	for i, bytes := range lengths {
		costs[i] = make([]float64, len(ways))
		for j, w := range ways {
			costs[i][j] = math.Log(ratio(list, bytes, w) * s.surcharge(kind, bytes, w))
		}
		if !slices.ContainsFunc(costs[i], func(c float64) bool { return !math.IsInf(c, 1) }) {
			return nil, fmt.Errorf("measured: %v of %d bytes was not measured with any algorithm that takes blocks of any length",
				kind, bytes)
		}
	}
	if oneClass(kind) {
		total := make([]float64, len(ways))
		for _, row := range costs {
			for j, c := range row {
				total[j] += c
			}
		}
		best := ways[slices.Index(total, slices.Min(total))]
		return []Rule{{Kind: kind, To: NoLimit, Algorithm: best.algorithm, Chunk: best.chunk}}, nil
	}
	for change := math.Log(worth); ; change *= 2 { // until there are not too many ranges
		path := cheapest(costs, func(i, from, to int) float64 {
			predicted := s.predicts(kind, lengths[i-1], ways[from]) && s.predicts(kind, lengths[i], ways[to])
			if from == to || predicted && change < free {
				return 0
			}
			return change
		})
		if rules := s.ranges(kind, lengths, ways, path); len(rules) <= MaxClasses/2 {
			return rules, nil
		}
	}
}

// axes are the lengths and the ways that were measured, each once and in order.
func (s *Selector) axes(kind coll.Kind, list []Measured) (lengths []uint64, ways []ruleCandidate) {
	p := newPredictor(s.shape, s.params)
	for _, m := range list {
		lengths = append(lengths, m.Bytes)
		c, err := p.ruled(Rule{Kind: kind, To: NoLimit, Algorithm: m.Algorithm, Chunk: m.Chunk}, m.Bytes)
		if err == nil && !c.Even {
			ways = append(ways, ruleCandidate{m.Algorithm, m.Chunk})
		}
	}
	slices.Sort(lengths)
	slices.SortFunc(ways, func(a, b ruleCandidate) int {
		return cmp.Or(cmp.Compare(a.algorithm, b.algorithm), cmp.Compare(a.chunk, b.chunk))
	})
	return slices.Compact(lengths), slices.Compact(ways)
}

// ratio is that of a way at a length. Where a chunk was not measured it is as the predicted one: both are longer than
// what there is to cut. It is infinite where the algorithm was not measured.
func ratio(list []Measured, bytes uint64, w ruleCandidate) float64 {
	usual := math.Inf(1)
	for _, m := range list {
		if m.Bytes != bytes || m.Algorithm != w.algorithm {
			continue
		}
		if m.Chunk == w.chunk {
			return m.Ratio
		}
		if m.Chunk == 0 {
			usual = m.Ratio
		}
	}
	return usual
}

// surcharge is the factor by which a way must be faster to be worth a rule. Where ranks share memory, reductions by
// messages must save as much as other collectives have to for being predicted: they add in another order than that of
// the ranks.
func (s *Selector) surcharge(kind coll.Kind, bytes uint64, w ruleCandidate) float64 {
	switch {
	case s.predicts(kind, bytes, w):
		return 1
	case kind.Reduces() && s.shape.sharesMemory() && !slices.Contains(shmplan.Algorithms(kind), w.algorithm):
		return 100. / (100 - margin)
	}
	return worth
}

// predicts says whether a length goes that way without any rule.
func (s *Selector) predicts(kind coll.Kind, bytes uint64, w ruleCandidate) bool {
	return w.chunk == 0 && s.Choose(kind, bytes).Algorithm == w.algorithm
}

// cheapest is the path through a table of costs, one column in each row, that costs least together with what each
// change to row i costs.
func cheapest(costs [][]float64, change func(i, from, to int) float64) []int {
	total := slices.Clone(costs[0])
	from := make([][]int, len(costs))
	for i := 1; i < len(costs); i++ {
		next := make([]float64, len(total))
		from[i] = make([]int, len(total))
		for to := range next {
			next[to] = math.Inf(1)
			for before, t := range total {
				if sum := t + change(i, before, to) + costs[i][to]; sum < next[to] {
					next[to], from[i][to] = sum, before
				}
			}
		}
		total = next
	}
	path := make([]int, len(costs))
	path[len(path)-1] = slices.Index(total, slices.Min(total))
	for i := len(path) - 1; i > 0; i-- {
		path[i-1] = from[i][path[i]]
	}
	return path
}

// ranges joins lengths that go the same way.
func (s *Selector) ranges(kind coll.Kind, lengths []uint64, ways []ruleCandidate, path []int) (rules []Rule) {
	for i, at := range path {
		if i > 0 && path[i-1] == at {
			continue
		}
		r := Rule{Kind: kind, To: NoLimit, Algorithm: ways[at].algorithm, Chunk: ways[at].chunk}
		if n := len(rules); n > 0 {
			r.From = s.between(kind, lengths[i-1], lengths[i], rules[n-1].Algorithm, r.Algorithm)
			rules[n-1].To = r.From
		}
		rules = append(rules, r)
	}
	return rules
}

// between is the last length of what was best at the lower one of two lengths: where the prediction changes as the
// measurement does it is the prediction's, else their geometric mean.
func (s *Selector) between(kind coll.Kind, low, high uint64, from, to string) uint64 {
	table := s.classes(kind)
	for i, c := range table[:len(table)-1] {
		if c.UpTo >= low && c.UpTo < high && c.Algorithm == from && table[i+1].Algorithm == to {
			return c.UpTo
		}
	}
	middle := uint64(math.Sqrt(float64(max(1, low)) * float64(high)))
	if aligned := middle &^ 63; aligned > low {
		return aligned
	}
	return max(1, middle)
}
