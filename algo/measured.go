package algo

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// Measured is the measured time of one algorithm for one length in a group.
type Measured struct {
	Kind      coll.Kind
	Bytes     uint64 // as [Selector.Choose] counts them
	Algorithm string
	Chunk     int     // 0: as predicted
	Seconds   float64 // a call, as users see it
	Ratio     float64 // to the time of the selector's own choice in the same rounds
}

// worth is the factor in time that a choice must gain over the predicted one, and a change of algorithm between two
// lengths over no change. Below it the same two algorithms change places from one measurement to the next.
const worth = 1.03

// free is the price of a change below which changes that the prediction makes as well cost nothing.
const free = 1

// Tuned returns the entry of a tuning file that follows from measurements in a group on a machine. It has rules for all
// lengths of the kinds that were measured. For the other kinds it has the parameters that predict the measurements best.
// Plans that need blocks of equal length get no rule, since only a user knows whether blocks are equal.
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

// check refuses a row that cannot have been measured.
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

// ruleCandidate is an algorithm with a chunk that a rule may set.
type ruleCandidate struct {
	algorithm string
	chunk     int
}

// measured returns the rules of one kind: the sequence of candidates, one for each length, that costs least. The cost
// of a candidate at a length is the logarithm of its ratio, so that all lengths have equal weight. A change from one
// length to the next costs a little, and so does a candidate that is not predicted. The sequence is found by dynamic
// programming (Viterbi, "Error bounds for convolutional codes", 1967).
func (s *Selector) measured(kind coll.Kind, list []Measured) ([]Rule, error) {
	lengths, candidates := s.axes(kind, list)
	if len(candidates) == 0 {
		return nil, fmt.Errorf("measured: no %v that takes blocks of any length", kind)
	}
	costs := make([][]float64, len(lengths))
	for i, bytes := range lengths {
		costs[i] = make([]float64, len(candidates))
		for j, w := range candidates {
			costs[i][j] = math.Log(ratio(list, bytes, w) * s.surcharge(kind, bytes, w))
		}
		if !slices.ContainsFunc(costs[i], func(c float64) bool { return !math.IsInf(c, 1) }) {
			return nil, fmt.Errorf("measured: %v of %d bytes was not measured with any algorithm that takes blocks of any length",
				kind, bytes)
		}
	}
	if oneClass(kind) {
		total := make([]float64, len(candidates))
		for _, row := range costs {
			for j, c := range row {
				total[j] += c
			}
		}
		best := candidates[slices.Index(total, slices.Min(total))]
		return []Rule{{Kind: kind, To: NoLimit, Algorithm: best.algorithm, Chunk: best.chunk}}, nil
	}
	for change := math.Log(worth); ; change *= 2 { // until there are not too many ranges
		path := cheapest(costs, func(i, from, to int) float64 {
			predicted := s.predicts(kind, lengths[i-1], candidates[from]) && s.predicts(kind, lengths[i], candidates[to])
			if from == to || predicted && change < free {
				return 0
			}
			return change
		})
		if rules := s.ranges(kind, lengths, candidates, path); len(rules) <= MaxClasses/2 {
			return rules, nil
		}
	}
}

// axes returns the lengths and the candidates that were measured, each once and in order.
func (s *Selector) axes(kind coll.Kind, list []Measured) (lengths []uint64, candidates []ruleCandidate) {
	p := newPredictor(s.shape, s.params)
	for _, m := range list {
		lengths = append(lengths, m.Bytes)
		c, err := p.ruled(Rule{Kind: kind, To: NoLimit, Algorithm: m.Algorithm, Chunk: m.Chunk}, m.Bytes)
		if err == nil && !c.Even {
			candidates = append(candidates, ruleCandidate{m.Algorithm, m.Chunk})
		}
	}
	slices.Sort(lengths)
	slices.SortFunc(candidates, func(a, b ruleCandidate) int {
		return cmp.Or(cmp.Compare(a.algorithm, b.algorithm), cmp.Compare(a.chunk, b.chunk))
	})
	return slices.Compact(lengths), slices.Compact(candidates)
}

// ratio returns the ratio of a candidate at a length. A chunk that was not measured has the ratio of the predicted
// chunk, since both are longer than the buffer. The ratio is infinite where the algorithm was not measured.
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

// surcharge returns the factor by which a candidate must be faster to be worth a rule. Where ranks share memory,
// reductions over channels need the same margin that other collectives need to be predicted, because they add in
// another order than that of the ranks.
func (s *Selector) surcharge(kind coll.Kind, bytes uint64, w ruleCandidate) float64 {
	switch {
	case s.predicts(kind, bytes, w):
		return 1
	case kind.Reduces() && s.shape.sharesMemory() && !slices.Contains(shmplan.Algorithms(kind), w.algorithm):
		return 100. / (100 - margin)
	}
	return worth
}

// predicts reports whether a candidate is chosen for a length without any rule.
func (s *Selector) predicts(kind coll.Kind, bytes uint64, w ruleCandidate) bool {
	return w.chunk == 0 && s.Choose(kind, bytes).Algorithm == w.algorithm
}

// cheapest returns the path through a table of costs, one column in each row, for which the sum of its costs and of its
// changes is least.
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

// ranges joins neighbouring lengths with the same candidate into rules.
func (s *Selector) ranges(kind coll.Kind, lengths []uint64, candidates []ruleCandidate, path []int) (rules []Rule) {
	for i, at := range path {
		if i > 0 && path[i-1] == at {
			continue
		}
		r := Rule{Kind: kind, To: NoLimit, Algorithm: candidates[at].algorithm, Chunk: candidates[at].chunk}
		if n := len(rules); n > 0 {
			r.From = s.between(kind, lengths[i-1], lengths[i], rules[n-1].Algorithm, r.Algorithm)
			rules[n-1].To = r.From
		}
		rules = append(rules, r)
	}
	return rules
}

// between returns where one candidate ends and the next begins between two lengths: where the prediction changes in the
// same way, else at their geometric mean.
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
