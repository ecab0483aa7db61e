package algo

import (
	"strings"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

// idle is an overlap whose collectives find an idle processor for every rank.
func idle(compute time.Duration) Overlap {
	return Overlap{Compute: compute, Parts: 64, Busy: 4, Processors: 64}
}

func TestSlicesHideCommunicationBehindComputing(t *testing.T) {
	s := selectorOf(t, Shape{Size: 4}, DefaultParams(), "")
	const bytes = 64 << 20
	communicate := s.price(coll.AllReduce, bytes)
	got := s.Slices(coll.AllReduce, bytes, idle(communicate))
	if got.Slices < 4 || got.Whole != 2*communicate || got.Predicted < communicate || got.Predicted > got.Whole*3/4 {
		t.Errorf("%+v: with computing as long as communicating (%v), slices should hide most of it", got, communicate)
	}
	if got := s.Slices(coll.AllReduce, bytes, Overlap{Compute: communicate, Parts: 3, Busy: 4, Processors: 64}); got.Slices != 2 {
		t.Errorf("%d slices of a computation with 3 parts: expected 2", got.Slices)
	}
}

// Slices are a loss where communicating needs the processors that compute, and where calls cost more than they hide.
func TestOneSliceWhereSlicesCannotPay(t *testing.T) {
	four, alone := selectorOf(t, Shape{Size: 4}, DefaultParams(), ""), selectorOf(t, Shape{Size: 1}, DefaultParams(), "")
	second := idle(time.Second)
	busy := second
	busy.Busy = busy.Processors
	onePart := second
	onePart.Parts = 1
	for _, c := range []struct {
		s     *Selector
		bytes uint64
		o     Overlap
		why   string
	}{
		{four, 64 << 20, busy, "keep 64 of 64 processors busy"},
		{four, 64 << 20, onePart, "one part only"},
		{alone, 64 << 20, second, "nothing to communicate"},
		{four, 8, idle(0), "cost more than they hide"},
		{four, 64 << 10, idle(10 * time.Microsecond), "cost more than they hide"},
		{four, 1 << 20, second, "less than 15 %"},
	} {
		if got := c.s.Slices(coll.AllReduce, c.bytes, c.o); got.Slices != 1 || got.Predicted != got.Whole || !strings.Contains(got.Why, c.why) {
			t.Errorf("%d bytes, %+v: %+v, expected one slice because: %s", c.bytes, c.o, got, c.why)
		}
	}
}

// Progress engines that share the idle processors take longer, so that slices hide less and at last do not pay.
func TestFewerIdleProcessorsHideLess(t *testing.T) {
	s := selectorOf(t, Shape{Size: 4}, DefaultParams(), "")
	const bytes = 64 << 20
	o := idle(s.price(coll.AllReduce, bytes))
	before := time.Duration(0)
	for _, processors := range []int{8, 6, 5, 4} {
		o.Processors = processors
		got := s.Slices(coll.AllReduce, bytes, o)
		if got.Predicted < before {
			t.Errorf("%d processors: predicted %v, with more of them %v", processors, got.Predicted, before)
		}
		before = got.Predicted
	}
	if before != s.Slices(coll.AllReduce, bytes, o).Whole {
		t.Errorf("no idle processor: predicted %v", before)
	}
}
