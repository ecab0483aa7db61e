package algo

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sagecomm/internal/coll"
)

const (
	// fitLongest bounds the lengths to which parameters are fitted. Longer buffers leave the caches, which the model
	// ignores.
	fitLongest = 1 << 20
	// fitRanks is the largest group for which parameters are fitted. Prices of larger ones take too long.
	fitRanks = 32
	// fitLengths is how many lengths of each kind are used.
	fitLengths = 8
	// pull draws parameters to their old values, so that a parameter without effect keeps its value. To change one by a
	// factor of e must reduce the error by this much.
	pull = 0.004
)

// fit finds the parameters with which predictions are closest to measurements, and returns those that have changed. It
// minimises the mean of |ln(predicted/measured)|, which forgives outliers. What a call takes outside the plan (Python,
// torch, the way into the core) is equal for all algorithms of a kind, so it is estimated for each kind and is no
// parameter. A price has no derivatives, since a plan's time is the longest of many paths. So fit multiplies and
// divides each parameter in turn by a factor that shrinks (coordinate search).
func (s *Selector) fit(list []Measured) (out []Setting) {
	if s.shape.Size > fitRanks {
		return nil
	}
	f := newFit(s.shape, s.params, list)
	if len(f.rows) == 0 {
		return nil
	}
	params := s.params
	least := f.loss(params)
	var open []parameter
	for _, one := range parameters {
		if f.matters(one, params) {
			open = append(open, one)
		}
	}
	for _, factor := range []float64{2, math.Sqrt2, 1.125} {
		for better := true; better; {
			better = false
			for _, one := range open {
				for _, by := range []float64{factor, 1 / factor} {
					next := params
					*one.in(&next) *= by
					if one.check(*one.in(&next)) != nil {
						continue
					}
					if loss := f.loss(next); loss < least {
						params, least, better = next, loss, true
						break
					}
				}
			}
		}
	}
	for _, one := range open {
		if value := *one.in(&params); value != *one.in(&s.params) {
			out = append(out, Setting{one.name, value})
		}
	}
	return out
}

// fit holds the measurements that parameters are fitted to.
type fit struct {
	shape   Shape
	from    Params
	rows    []Measured // by kind
	classes []Class
	last    [2]pricedRows // of slots and of channels: no parameter concerns both
}

// pricedRows holds the prices of the rows of one transport, in seconds, with given parameters.
type pricedRows struct {
	with   Params
	prices map[int]float64 // by row
}

// newFit selects the rows that parameters are fitted to.
func newFit(shape Shape, from Params, list []Measured) *fit {
	f := &fit{shape: shape, from: from}
	p := newPredictor(shape, from)
	for kind := range coll.KindCount {
		var lengths []uint64
		for _, m := range list {
			if m.Kind == kind && m.Bytes <= fitLongest {
				lengths = append(lengths, m.Bytes)
			}
		}
		slices.Sort(lengths)
		lengths = slices.Compact(lengths)
		every := (len(lengths) + fitLengths - 1) / fitLengths
		for _, m := range list {
			at, found := slices.BinarySearch(lengths, m.Bytes)
			if m.Kind != kind || m.Chunk != 0 || !found || at%every != 0 {
				continue
			}
			c, err := p.ruled(Rule{Kind: kind, To: NoLimit, Algorithm: m.Algorithm}, m.Bytes)
			if err == nil {
				f.rows, f.classes = append(f.rows, m), append(f.classes, c)
			}
		}
	}
	return f
}

// matters reports whether a parameter has an effect on the predictions of the rows.
func (f *fit) matters(one parameter, params Params) bool {
	next := params
	if *one.in(&next) *= 2; one.check(*one.in(&next)) != nil || *one.in(&next) == 0 {
		return false
	}
	before := f.predict(params)
	return !slices.Equal(before, f.predict(next))
}

// loss returns the error of the predictions with given parameters, and the pull to the old values.
func (f *fit) loss(params Params) (sum float64) {
	predicted := f.predict(params)
	for first := 0; first < len(f.rows); {
		end := first
		for end < len(f.rows) && f.rows[end].Kind == f.rows[first].Kind {
			end++
		}
		beside := f.beside(predicted, first, end)
		for i := first; i < end; i++ {
			sum += math.Abs(math.Log((beside + predicted[i]) / f.rows[i].Seconds))
		}
		first = end
	}
	sum /= float64(len(f.rows))
	for _, one := range parameters {
		if was := *one.in(&f.from); was > 0 {
			sum += pull * math.Abs(math.Log(*one.in(&params)/was))
		}
	}
	return sum
}

// beside returns the time that a call takes outside its plan: at the shortest length, the median over the algorithms of
// a kind of the measured minus the predicted time.
func (f *fit) beside(predicted []float64, first, end int) float64 {
	shortest := slices.MinFunc(f.rows[first:end], func(a, b Measured) int { return cmp.Compare(a.Bytes, b.Bytes) })
	var more []float64
	for i := first; i < end; i++ {
		if f.rows[i].Bytes == shortest.Bytes {
			more = append(more, f.rows[i].Seconds-predicted[i])
		}
	}
	slices.Sort(more)
	return max(0, more[len(more)/2])
}

// predict prices all rows, in seconds.
func (f *fit) predict(params Params) []float64 {
	out := make([]float64, len(f.rows))
	p := newPredictor(f.shape, params)
	for _, transport := range []Transport{Slots, Channels} {
		known := &f.last[transport]
		concerned := params
		if transport == Slots {
			concerned = Params{Slots: params.Slots}
		} else {
			concerned.Slots = f.from.Slots
		}
		if known.prices == nil || known.with != concerned {
			*known = pricedRows{concerned, map[int]float64{}}
			for i, m := range f.rows {
				if f.classes[i].Transport == transport {
					known.prices[i] = p.seconds(m.Kind, f.classes[i], m.Bytes)
				}
			}
		}
		for i, price := range known.prices {
			out[i] = price
		}
	}
	return out
}

// seconds returns the predicted time of a class. A class without a price has a time longer than anything that was
// measured.
func (p *predictor) seconds(kind coll.Kind, c Class, bytes uint64) float64 {
	if c.Transport == Slots {
		return p.slots.price(kind, c, bytes).Duration().Seconds()
	}
	s, err := p.sendRecvCandidate(kind, c.Algorithm, c.Chunk)
	if err != nil {
		return math.MaxInt64 / float64(1e9)
	}
	return s.pricer.Price(bytes).Seconds()
}

// text returns the value with a unit and three digits, as [ParseTune] reads it.
func (s Setting) text() string { return formatTime(s.Seconds, 3) }

// formatTime returns a time with a unit and some digits.
func formatTime(of float64, digits int) string {
	for _, unit := range []struct {
		name    string
		seconds float64
	}{{"ps", 1e-12}, {"ns", 1e-9}, {"us", 1e-6}} {
		if in := of / unit.seconds; in < 999.5 {
			return fmt.Sprintf("%.*g%s", digits, in, unit.name)
		}
	}
	return fmt.Sprintf("%.*gms", digits, of/1e-3)
}
