package algo

import (
	"slices"
	"time"

	"sagecomm/algo/cost"
	"sagecomm/internal/coll"
)

// horizon is the longest length that is priced. Longer ones get the class of this one.
const horizon = 1 << 30

// nearest is the shortest length at which sendrecv plans are compared.
const nearest = 64

// margin is the saving, in percent, that must be predicted for a sendrecv plan before it replaces a slot plan. It is
// the error of prices of slot plans against measurements. Prices of sendrecv plans follow from the same numbers, and
// their channels take memory for each pair of ranks.
const margin = 15

// mostWork bounds the work of a table, see [cost.Pricer.Within]: about a second and a half of a server core. It is a
// count, so that all ranks price the same plans.
const mostWork = 1 << 23

// predictor makes the tables of a group.
type predictor struct {
	shape  Shape
	params Params
	slots  slotPredictor
	costs  cost.Costs
	known  map[sendRecvKey]sendRecvCandidate
	left   *int // of the work of prices; nil: no bound
}

// newPredictor returns a predictor that has priced nothing yet.
func newPredictor(shape Shape, params Params) *predictor {
	return &predictor{shape: shape, params: params, slots: newSlotPredictor(shape.Size, params.Slots), costs: shape.costs(params),
		known: map[sendRecvKey]sendRecvCandidate{}}
}

// onlyByRule reports whether only rules choose sendrecv plans of a kind. Slot plans add in the order of ranks and round
// halves once; sendrecv plans do not, and only a user may give up precision.
func (p *predictor) onlyByRule(kind coll.Kind) bool { return kind.Reduces() && p.shape.sharesMemory() }

// table returns the predicted table of a kind, without any rule.
//
// Sendrecv plans are compared with slot plans at powers of two only, and each range between two powers gets the class
// of its longest length. To price a sendrecv plan is to play it on up to all ranks, and little is lost: the cost curves
// are nearly straight and cross each other at small angles.
func (p *predictor) table(kind coll.Kind) []Class {
	var base []Class
	if p.shape.sharesMemory() {
		base = p.slots.predict(kind)
	}
	if p.onlyByRule(kind) {
		return base
	}
	list := p.predictable(kind, true)
	if len(list) == 0 && base != nil {
		return base
	}
	if oneClass(kind) || kind == coll.Barrier {
		list = slices.DeleteFunc(list, func(s sendRecvCandidate) bool { return !s.pricer.Priced() })
		return p.onlyClass(kind, base, list)
	}
	// If plans of about equal cost change places too often, they are compared at every other power of two, then at every
	// fourth, and so on. Half of the possible classes are left to rules.
	for coarse := uint64(2); ; coarse *= 2 {
		if table := p.merged(kind, base, list, coarse); len(table) <= MaxClasses/2 || coarse >= horizon {
			return table
		}
	}
}

// merged puts sendrecv plans into a table where they are cheaper. It compares them at lengths that grow by factor.
func (p *predictor) merged(kind coll.Kind, base []Class, list []sendRecvCandidate, factor uint64) []Class {
	chosen := map[uint64]Class{} // by the end of their range
	edges, before := []uint64{}, ""
	for upTo := uint64(nearest); ; upTo = min(upTo*factor, horizon) {
		limit := cost.Unpriced
		if base != nil {
			limit = p.limit(kind, at(base, upTo), upTo)
		}
		end := upTo
		if upTo == horizon {
			end = NoLimit
		}
		if best, found := faster(list, upTo, limit, before); found {
			chosen[end], before = best.class, best.class.Algorithm
		} else if base == nil {
			chosen[end] = p.fallback(kind, upTo)
		}
		edges = append(edges, end)
		if upTo == horizon {
			break
		}
	}
	if base == nil {
		base = []Class{{UpTo: NoLimit}}
	}
	return cut(base, edges, func(piece Class) Class {
		for _, end := range edges {
			if piece.UpTo <= end {
				if c, ok := chosen[end]; ok {
					return c
				}
				break
			}
		}
		return piece
	})
}

// limit returns the time below which a sendrecv plan replaces a slot plan.
func (p *predictor) limit(kind coll.Kind, c Class, bytes uint64) time.Duration {
	t := p.slots.price(kind, c, bytes).Duration()
	return t/100*(100-margin) + t%100*(100-margin)/100 + 1
}

// mostPeers is the number of ranks with which a rank exchanges messages in the plans that a prediction prefers over several
// hosts. Each peer takes the memory of a channel, and all of them may send to a rank at once; prices have neither.
const mostPeers = 64

// predictable returns the sendrecv algorithms that a prediction can choose: those for blocks of any length, and of these
// the ones with few peers, if there are such. With short it leaves out plans that are certainly too long to have a price.
func (p *predictor) predictable(kind coll.Kind, short bool) []sendRecvCandidate {
	list := slices.DeleteFunc(p.sendRecvCandidates(kind, short), func(s sendRecvCandidate) bool { return s.class.Even })
	few := slices.DeleteFunc(slices.Clone(list), func(s sendRecvCandidate) bool { return p.crowded(kind, s.class) })
	if len(few) > 0 {
		return few
	}
	return list
}

// crowded reports whether a class is a plan over several hosts in which a rank has more peers than a prediction prefers.
func (p *predictor) crowded(kind coll.Kind, c Class) bool {
	if p.shape.sharesMemory() || p.shape.Size <= mostPeers+1 || c.Transport != Channels {
		return false
	}
	s, err := p.sendRecvCandidate(kind, c.Algorithm, c.Chunk)
	return err == nil && s.pricer.Peers() > mostPeers
}

// fallback returns the sendrecv algorithm of a length where none has a price: the plans of all ranks are too long to be
// played, or links are so slow that every time overflows. It compares lower bounds, of those algorithms whose bounds are
// close to the price, and takes the first one whose bound is about the least. So short messages get a plan of few steps,
// and long ones may get a ring, in which fewer bytes go between hosts.
func (p *predictor) fallback(kind coll.Kind, bytes uint64) Class {
	list := p.predictable(kind, false)
	if some := slices.DeleteFunc(slices.Clone(list), func(s sendRecvCandidate) bool { return !s.bounded(kind) }); len(some) > 0 {
		list = some
	}
	least := cost.Unpriced
	for _, s := range list {
		least = min(least, s.pricer.AtLeast(bytes))
	}
	about := slices.IndexFunc(list, func(s sendRecvCandidate) bool { return s.pricer.AtLeast(bytes)/10*9 <= least })
	return list[about].class
}

// onlyClass returns the table of a kind with one class. It takes the plan whose worst ratio to the best plan of each
// length is smallest. Where ranks share memory, the plan must also be faster than the slot plan at all lengths.
func (p *predictor) onlyClass(kind coll.Kind, base []Class, list []sendRecvCandidate) []Class {
	lengths := []uint64{0}
	if kind != coll.Barrier {
		lengths = nil
		for bytes := uint64(nearest); bytes <= horizon; bytes *= 4 {
			lengths = append(lengths, bytes)
		}
	}
	best, least := -1, 0.
	for i, s := range list {
		if base != nil && !p.alwaysFaster(kind, base[0], s, lengths) {
			continue
		}
		if worst := worstRatio(s, list, lengths); best < 0 || worst < least {
			best, least = i, worst
		}
	}
	switch {
	case best >= 0:
		return []Class{list[best].class}
	case base == nil:
		return []Class{p.fallback(kind, nearest)}
	}
	return base
}

// alwaysFaster reports whether a sendrecv plan is faster than a slot plan, by the margin, at all lengths.
func (p *predictor) alwaysFaster(kind coll.Kind, c Class, s sendRecvCandidate, lengths []uint64) bool {
	for _, bytes := range lengths {
		limit := p.limit(kind, c, bytes)
		if s.pricer.AtLeast(bytes) >= limit || s.pricer.Price(bytes) >= limit {
			return false
		}
	}
	return true
}

// worstRatio returns the largest factor by which a plan is slower than the best one at some length.
func worstRatio(s sendRecvCandidate, list []sendRecvCandidate, lengths []uint64) (worst float64) {
	for _, bytes := range lengths {
		mine := s.pricer.Price(bytes)
		for _, other := range list {
			if t := other.pricer.Price(bytes); t > 0 {
				worst = max(worst, float64(mine)/float64(t))
			}
		}
	}
	return worst
}

// at returns the class of a length in a table.
func at(table []Class, bytes uint64) Class {
	for _, c := range table {
		if bytes <= c.UpTo {
			return c
		}
	}
	return table[len(table)-1]
}

// cut divides a table at some edges, replaces each piece by the result of change, and joins neighbours that are the
// same. The piece that change gets ends at its [Class.UpTo].
func cut(table []Class, edges []uint64, change func(piece Class) Class) []Class {
	var out []Class
	low := uint64(0)
	for _, class := range table {
		for low <= class.UpTo {
			piece := class
			for _, edge := range edges {
				if edge >= low && edge < piece.UpTo && edge > 0 {
					piece.UpTo = edge
				}
			}
			c := change(piece)
			c.UpTo = piece.UpTo
			if n := len(out); n > 0 && out[n-1].same(c) {
				out[n-1].UpTo = c.UpTo
			} else {
				out = append(out, c)
			}
			if piece.UpTo == NoLimit {
				return out
			}
			low = piece.UpTo + 1
		}
	}
	return out
}
