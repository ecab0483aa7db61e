package algo

import (
	"fmt"
	"time"

	"sagecomm/internal/coll"
)

// mostSlices bounds the slices of one call, and so the operations that are in flight for it.
const mostSlices = 32

// perSlice is what a slice costs its caller beside computing and communicating: an asynchronous call from Python, whose
// issue enters Go, and the wait for it. Ten of them take 475 us between two ranks on two processors (docs/measured.md, "one
// by one, asynchronous, then waited for").
const perSlice = 48 * time.Microsecond

// Overlap describes a computation and a collective that can be cut into slices: slice k is communicated while slice k+1
// is computed, or the other way round.
type Overlap struct {
	Compute time.Duration // of the whole, on the slowest rank
	Parts   int           // the most slices that the computation can be cut into
	// Busy is the number of processors that the ranks' computations keep busy together, and Processors the number that the
	// ranks may run on. Collectives of host memory are copies and additions by processors: they hide behind
	// computations only on processors that these leave idle.
	Busy, Processors int
}

// Slicing is a number of slices with the predicted times that led to it.
type Slicing struct {
	Slices    int
	Whole     time.Duration // without slices: the computation, then the collective
	Predicted time.Duration // with that number of slices
	Why       string
}

// Slices returns the number of slices, a power of two, that is predicted to take the least time for a collective of this
// length and the computation beside it. It is 1 unless more save the margin of the prediction. All ranks that ask with
// the same numbers get the same answer.
//
// With K slices, computing takes c and communicating r for each of them, and the two alternate as stages of a pipeline:
// T(K) = c + (K-1) max(c, s r) + r + (K-1) perSlice. While both run, the progress engines of the ranks share the idle
// processors, which makes communicating s times as long.
func (s *Selector) Slices(kind coll.Kind, bytes uint64, o Overlap) Slicing {
	whole := o.Compute + s.price(kind, bytes)
	best := Slicing{Slices: 1, Whole: whole, Predicted: whole}
	idle := o.Processors - o.Busy
	switch {
	case s.shape.Size == 1:
		best.Why = "there is nothing to communicate"
		return best
	case o.Parts < 2:
		best.Why = "the computation has one part only"
		return best
	case idle < 1:
		best.Why = fmt.Sprintf("the computations keep %d of %d processors busy, so communicating would take their time", min(o.Busy, o.Processors), o.Processors)
		return best
	}
	shared := time.Duration(max(1, (s.shape.Size+idle-1)/idle))
	for slices := 2; slices <= min(mostSlices, o.Parts); slices *= 2 {
		k := time.Duration(slices)
		compute, communicate := o.Compute/k, s.price(kind, (bytes+uint64(slices)-1)/uint64(slices))
		t := compute + (k-1)*(max(compute, shared*communicate)+perSlice) + communicate
		if t < best.Predicted {
			best.Slices, best.Predicted = slices, t
		}
	}
	if best.Slices > 1 && best.Predicted > whole/100*(100-margin) {
		best.Why = fmt.Sprintf("%d slices would save less than %d %%, the error of predictions", best.Slices, margin)
		best.Slices, best.Predicted = 1, whole
	} else if best.Slices == 1 {
		best.Why = "slices would cost more than they hide"
	} else {
		best.Why = "predicted to take the least time"
	}
	return best
}

// price returns the predicted time of a collective with the class that serves its length.
func (s *Selector) price(kind coll.Kind, bytes uint64) time.Duration {
	return newPredictor(s.shape, s.params).explained(kind, s.Choose(kind, bytes), bytes).Predicted
}
