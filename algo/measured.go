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
	Bytes     uint64 // length, counted as [Selector.Choose] counts it
	Algorithm string
	Chunk     int     // 0 stands for the predicted chunk
	Seconds   float64 // time of a whole call, as a user measures it
	Ratio     float64 // Seconds divided by the time of the selector's own choice in the same rounds
	Dropped   bool    // it was so slow in its first turn that it had no other one; a single turn justifies no rule
	// Confirmed is the ratio in a later run in which this candidate and the selector's own choice were alone; 0 without
	// such a run.
	Confirmed float64
}

// worth is the factor in time by which a choice must beat the predicted one. A change of algorithm between two lengths
// must gain as much over no change. Below it the same two algorithms change places from one measurement to the next.
const worth = 1.03

// free is the price of a change of algorithm below which a change costs nothing where the prediction changes as well.
const free = 1

// Tuned returns the entry of a tuning file that follows from measurements in a group on a machine. For the kinds that
// were measured it has rules, up to the longest measured length. For the other kinds it has the parameters that predict
// the measurements best, and always those of messages between hosts where there are several. A rule departs from the
// prediction only where a separate run has confirmed that it saves time, because the best of many candidates is partly the
// luckiest one. Plans that need blocks of equal length get no rule, since only a user knows whether blocks are equal.
func (s *Selector) Tuned(machine string, list []Measured) (Entry, error) {
	e := Entry{Machine: machine, Size: s.shape.Size, Hosts: s.shape.HostCount(), Params: map[string]string{}}
	err := s.eachKind(list, func(kind coll.Kind, of []Measured) error {
		_, rules, err := s.cheapestRules(kind, of, (*Measured).sure)
		for _, r := range rules {
			e.Rules = append(e.Rules, r.String())
		}
		return err
	})
	if err != nil {
		return e, err
	}
	for _, one := range s.fit(list) {
		e.Params[one.Name] = one.text()
	}
	if s.shape.Apart { // the next run may measure its links otherwise, and rules and other parameters fit these ones
		for _, one := range networkParameters() {
			e.Params[one.name] = cmp.Or(e.Params[one.name], formatTime(*one.in(&s.params), networkDigits))
		}
	}
	return e, nil
}

// Unconfirmed returns the measurements that would change the result of [Selector.Tuned] if a separate run confirmed
// them.
func (s *Selector) Unconfirmed(list []Measured) (open []Measured, err error) {
	err = s.eachKind(list, func(kind coll.Kind, of []Measured) error {
		used, _, err := s.cheapestRules(kind, of, (*Measured).hoped)
		for _, m := range used {
			if m.Confirmed == 0 && !s.predicts(kind, m.Bytes, ruleCandidate{m.Algorithm, m.Chunk}) {
				open = append(open, *m)
			}
		}
		return err
	})
	return open, err
}

// eachKind calls a function for each kind that was measured, with its measurements.
func (s *Selector) eachKind(list []Measured, do func(coll.Kind, []Measured) error) error {
	p := newPredictor(s.shape, s.params)
	for _, m := range list {
		if err := p.check(m); err != nil {
			return err
		}
	}
	for kind := range coll.KindCount {
		of := slices.DeleteFunc(slices.Clone(list), func(m Measured) bool { return m.Kind != kind })
		if len(of) == 0 {
			continue
		}
		if err := do(kind, of); err != nil {
			return err
		}
	}
	return nil
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
	if !(m.Confirmed >= 0 && m.Confirmed < math.MaxFloat64) {
		return fmt.Errorf("measured: %v %s of %d bytes is confirmed as %g times what was chosen: expected more than 0",
			m.Kind, m.Algorithm, m.Bytes, m.Confirmed)
	}
	_, err := p.ruled(Rule{Kind: m.Kind, To: NoLimit, Algorithm: m.Algorithm, Chunk: m.Chunk}, m.Bytes)
	return err
}

// ruleCandidate is an algorithm with a chunk that a rule may set.
type ruleCandidate struct {
	algorithm string
	chunk     int
}

// hoped returns the confirmed ratio of a candidate, or its first ratio if no separate run has confirmed it.
func (m *Measured) hoped() float64 {
	switch {
	case m.Dropped:
		return math.Inf(1)
	case m.Confirmed > 0:
		return m.Confirmed
	}
	return m.Ratio
}

// sure returns the confirmed ratio of a candidate. It is infinite without a confirmation.
func (m *Measured) sure() float64 {
	if m.Confirmed > 0 {
		return m.hoped()
	}
	return math.Inf(1)
}

// cheapestRules returns the sequence of candidates, one for each length, that costs least: as measurements in order of
// length, and as the rules that set these candidates. The cost of a candidate at a length is the logarithm of its
// ratio, so that all lengths have equal weight. A change of candidate from one length to the next costs a little, and
// so does a candidate that is not predicted. The sequence is found by dynamic programming (Viterbi, "Error bounds for
// convolutional codes", 1967).
func (s *Selector) cheapestRules(kind coll.Kind, list []Measured, ratio func(*Measured) float64) (used []*Measured, rules []Rule, err error) {
	lengths, candidates := s.axes(kind, list)
	if len(candidates) == 0 {
		return nil, nil, fmt.Errorf("measured: no %v that takes blocks of any length", kind)
	}
	single := oneClass(kind) || kind == coll.Barrier
	costs := make([][]float64, len(lengths))
	for i, bytes := range lengths {
		costs[i] = make([]float64, len(candidates))
		for j, c := range candidates {
			costs[i][j] = s.cost(kind, measurement(list, bytes, c), bytes, c, ratio)
			// A rule for a range must save time at each of its lengths. Only a rule for all lengths may lose at some of
			// them.
			if !single && costs[i][j] >= 0 && !s.predicts(kind, bytes, c) {
				costs[i][j] = math.Inf(1)
			}
		}
		if !single && math.IsInf(slices.Min(costs[i]), 1) {
			return nil, nil, fmt.Errorf("measured: %v of %d bytes was not measured with the algorithm that is chosen there", kind, bytes)
		}
	}
	if single {
		total := make([]float64, len(candidates))
		for _, row := range costs {
			for j, c := range row {
				total[j] += c
			}
		}
		least := slices.Min(total)
		if math.IsInf(least, 1) {
			return nil, nil, fmt.Errorf("measured: %v was not measured with the algorithm that is chosen at all lengths", kind)
		}
		best := candidates[slices.Index(total, least)]
		for _, bytes := range lengths {
			used = append(used, measurement(list, bytes, best))
		}
		return used, []Rule{{Kind: kind, To: NoLimit, Algorithm: best.algorithm, Chunk: best.chunk}}, nil
	}
	for change := math.Log(worth); ; change *= 2 { // a higher price makes fewer ranges, until there are few enough
		path := cheapest(costs, func(i, from, to int) float64 {
			predicted := s.predicts(kind, lengths[i-1], candidates[from]) && s.predicts(kind, lengths[i], candidates[to])
			if from == to || predicted && change < free {
				return 0
			}
			return change
		})
		if rules := s.ranges(kind, lengths, candidates, path); len(rules) <= MaxClasses/2 {
			for i, at := range path {
				used = append(used, measurement(list, lengths[i], candidates[at]))
			}
			return used, rules, nil
		}
	}
}

// cost returns the logarithm of a candidate's ratio at a length, times its surcharge. A candidate that is chosen there
// without any rule needs no confirmation.
func (s *Selector) cost(kind coll.Kind, m *Measured, bytes uint64, c ruleCandidate, ratio func(*Measured) float64) float64 {
	switch {
	case m == nil:
		return math.Inf(1)
	case s.predicts(kind, bytes, ruleCandidate{m.Algorithm, m.Chunk}):
		ratio = func(m *Measured) float64 { return m.Ratio }
	}
	return math.Log(ratio(m) * s.surcharge(kind, bytes, c))
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

// measurement returns the measurement of a candidate at a length, or nil. If the candidate's chunk was not measured
// there, it returns that of the predicted chunk: both are longer than the buffer and make the same plan.
func measurement(list []Measured, bytes uint64, c ruleCandidate) *Measured {
	var usual *Measured
	for i := range list {
		m := &list[i]
		if m.Bytes != bytes || m.Algorithm != c.algorithm {
			continue
		}
		if m.Chunk == c.chunk {
			return m
		}
		if m.Chunk == 0 {
			usual = m
		}
	}
	return usual
}

// surcharge returns the factor by which a candidate must be faster to get a rule. Where ranks share memory, a reduction
// over channels needs the margin that other collectives over channels need to be predicted, because it adds in another
// order than that of the ranks.
func (s *Selector) surcharge(kind coll.Kind, bytes uint64, c ruleCandidate) float64 {
	switch {
	case s.predicts(kind, bytes, c):
		return 1
	case kind.Reduces() && s.shape.sharesMemory() && !slices.Contains(shmplan.Algorithms(kind), c.algorithm):
		return 100. / (100 - margin)
	}
	return worth
}

// predicts reports whether a candidate is chosen at a length without any rule from measurements.
func (s *Selector) predicts(kind coll.Kind, bytes uint64, c ruleCandidate) bool {
	return c.chunk == 0 && s.Choose(kind, bytes).Algorithm == c.algorithm
}

// cheapest returns the path through a table of costs, one column in each row, with the least sum of costs and changes.
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

// ranges joins neighbouring lengths of the same candidate into rules. The last rule ends at the longest length that was
// measured; beyond it the prediction holds.
func (s *Selector) ranges(kind coll.Kind, lengths []uint64, candidates []ruleCandidate, path []int) (rules []Rule) {
	for i, at := range path {
		if i > 0 && path[i-1] == at {
			continue
		}
		r := Rule{Kind: kind, To: lengths[len(lengths)-1], Algorithm: candidates[at].algorithm, Chunk: candidates[at].chunk}
		if n := len(rules); n > 0 {
			r.From = s.between(kind, lengths[i-1], lengths[i], rules[n-1].Algorithm, r.Algorithm)
			rules[n-1].To = r.From
		}
		rules = append(rules, r)
	}
	return rules
}

// between returns the boundary between two candidates that were measured at two lengths: where the prediction makes the
// same change, else the geometric mean.
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
