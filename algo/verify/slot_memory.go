package verify

import (
	"fmt"
	"slices"
)

// contribution is one rank's input from an offset on.
type contribution struct {
	rank int
	off  uint64
}

// spanValue is the value of a range of bytes. Byte i of the range is the reduction, in the order of the list, of the bytes at
// skip + i behind each contribution's offset. Ranges share lists, which never change.
type spanValue struct {
	of   []contribution
	skip uint64
}

func (v spanValue) from(i uint64) spanValue { return spanValue{v.of, v.skip + i} }

// access is one step of one rank.
type access struct {
	rank int
	step int // index in the rank's steps
}

// span is a written range of a memory. For slots it holds its writer, the ticket, and the accesses that have read it since.
type span struct {
	lo, hi  uint64
	val     spanValue
	ticket  int64
	writer  access
	readers []access
}

// spanMemory is a list of spans in order of address. Bytes that no span covers were never written.
type spanMemory struct{ spans []span }

// cut makes lo and hi boundaries and returns the spans between them.
func (m *spanMemory) cut(lo, hi uint64) (i, j int) {
	i = m.split(lo)
	return i, m.split(hi)
}

// split makes a boundary and returns the first span behind it.
func (m *spanMemory) split(at uint64) int {
	i, beyond := 0, len(m.spans)
	for i < beyond {
		if middle := (i + beyond) / 2; m.spans[middle].hi > at {
			beyond = middle
		} else {
			i = middle + 1
		}
	}
	if i < len(m.spans) && m.spans[i].lo < at {
		right := m.spans[i]
		right.val = right.val.from(at - right.lo)
		right.lo = at
		right.readers = slices.Clone(right.readers)
		m.spans[i].hi = at
		i++
		m.spans = slices.Insert(m.spans, i, right)
	}
	return i
}

// over returns the spans within [lo, hi) after making these boundaries; the caller may change them in place.
func (m *spanMemory) over(lo, hi uint64) []span {
	i, j := m.cut(lo, hi)
	return m.spans[i:j]
}

// write replaces [lo, hi) by spans that cover it.
func (m *spanMemory) write(lo, hi uint64, with []span) {
	i, j := m.cut(lo, hi)
	m.spans = slices.Replace(m.spans, i, j, with...)
}

// gap returns the first range within [lo, hi) that spans, a result of over, do not cover.
func gap(spans []span, lo, hi uint64) (from, to uint64, found bool) {
	for _, s := range spans {
		if s.lo > lo {
			return lo, s.lo, true
		}
		lo = s.hi
	}
	return lo, hi, lo < hi
}

// reduce combines ranges of equal length, moved to base 0, into one list of spans that hold the contributions of all in
// order.
func (r *slotRun) reduce(sources [][]span, length uint64) []span {
	if len(sources) == 1 {
		return sources[0]
	}
	out := r.reduced[:0]
	at := append(r.places[:0], make([]int, len(sources))...)
	for pos := uint64(0); pos < length; {
		end := length
		n := 0
		for i, spans := range sources {
			for spans[at[i]].hi <= pos {
				at[i]++
			}
			end = min(end, spans[at[i]].hi)
			n += len(spans[at[i]].val.of)
		}
		of := r.list(n)
		for i, spans := range sources {
			s := spans[at[i]]
			v := s.val.from(pos - s.lo)
			for _, c := range v.of {
				of = append(of, contribution{c.rank, c.off + v.skip})
			}
		}
		out = append(out, span{lo: pos, hi: end, val: spanValue{of: of}})
		pos = end
	}
	r.reduced, r.places = out, at
	return out
}

// list returns an empty list with room for n contributions.
func (r *slotRun) list(n int) []contribution {
	if cap(r.lists)-len(r.lists) < n {
		r.lists = make([]contribution, 0, max(n, 2*cap(r.lists)))
	}
	first := len(r.lists)
	r.lists = r.lists[:first+n]
	return r.lists[first : first : first+n]
}

// expect checks that [lo, hi) holds, byte for byte, the reduction of the ranks' inputs from offset base on.
func (m *spanMemory) expect(lo, hi uint64, ranks []int, base uint64) error {
	spans := m.over(lo, hi)
	if from, to, found := gap(spans, lo, hi); found {
		return fmt.Errorf("bytes [%d, %d) of the output were never written", from, to)
	}
	for _, s := range spans {
		ok := len(s.val.of) == len(ranks)
		for i := 0; ok && i < len(ranks); i++ {
			c := s.val.of[i]
			ok = c.rank == ranks[i] && c.off+s.val.skip == base+s.lo-lo
		}
		if !ok {
			return fmt.Errorf("bytes [%d, %d) of the output hold %v, expected %v",
				s.lo, s.hi, s.val, expected(ranks, base+s.lo-lo))
		}
	}
	return nil
}

// expected returns the value that holds the contributions of some ranks.
func expected(ranks []int, off uint64) spanValue {
	v := spanValue{}
	for _, r := range ranks {
		v.of = append(v.of, contribution{r, off})
	}
	return v
}

// String lists contributions as rank@offset.
func (v spanValue) String() string {
	s := ""
	for i, c := range v.of {
		if i > 0 {
			s += " + "
		}
		s += fmt.Sprintf("%d@%d", c.rank, c.off+v.skip)
	}
	return "{" + s + "}"
}
