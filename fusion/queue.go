package fusion

import (
	"fmt"
	"slices"
	"time"

	"sagecomm/internal/coll"
)

// Limits bound what shares a collective without having been asked to. All ranks of a group have the same.
type Limits struct {
	Longest uint64 // bytes; longer operations do not join
	Bytes   uint64 // a bucket that has reached so many is closed
	Count   int    // so is one with so many operations
}

// At the length Limits.Longest, ofThem operations in one collective take at most three quarters of the time of as many
// collectives, the agreement included. A closed bucket is as long as that many of these operations.
const (
	ofThem    = 8
	mostCount = 64 // of short operations, so that the first one does not wait long for the last
	shortest  = 64
	mostBytes = 512 << 10 // beyond it an operation costs its bytes, whatever a model says
	agreement = 8         // bytes
)

// LimitsFor returns the limits that follow from what all_reduces cost: predict returns the time of one, by its bytes.
func LimitsFor(predict func(bytes uint64) time.Duration) Limits {
	l := Limits{Count: mostCount}
	for n := uint64(shortest); n <= mostBytes/ofThem; n *= 2 {
		if 3*ofThem*predict(n) < 4*(predict(ofThem*n)+predict(agreement)) {
			break
		}
		l.Longest, l.Bytes = n, ofThem*n
	}
	return l
}

// String describes the limits to users.
func (l Limits) String() string {
	if l.Longest == 0 {
		return "no all_reduce is short enough to gain by it"
	}
	return fmt.Sprintf("all_reduces of up to %d bytes share collectives of up to %d bytes or %d operations", l.Longest, l.Bytes, l.Count)
}

// Joins reports whether an operation joins others. The answer depends on nothing that only one rank knows: not on whether it is
// asynchronous, because one rank may wait inside the call and another one later.
func (l Limits) Joins(op coll.Op) bool {
	return op.Kind == coll.AllReduce && joins(op) && op.Device.IsHost() && op.Parts == 0 && op.In > 0 && op.In <= l.Longest
}

// Queue decides, on one rank, which operations share a collective: it has the operations that have no place in the order of
// collectives yet, the oldest first. It sees descriptions only and has no clock, no memory and no lock; its user tells it what
// happens and carries out what Next returns.
//
// The operations at its head that can share a collective are the bucket. A rank proposes how many of them shall: all that it
// has, once its bucket is closed, or once somebody wants one of them. The lowest proposal of all ranks decides, and so every rank
// takes the same operations, wherever each of them waits, polls or goes on. What closes a bucket on one rank is no more than a
// reason to propose: a peer may wait for an operation in the middle of it, and not issue the rest before that is complete.
type Queue struct {
	limits   Limits
	list     []entry
	wanted   bool
	proposed int // operations that this rank has proposed; 0: no agreement is under way
	agreed   int // operations that share the next collective; 0: nothing is agreed
}

type entry struct {
	op    coll.Op
	joins bool
	apart bool // it cannot share a collective with those before it
}

// NewQueue returns an empty queue.
func NewQueue(l Limits) *Queue { return &Queue{limits: l} }

// Len returns how many operations wait.
func (q *Queue) Len() int { return len(q.list) }

// Bucket returns how many operations the bucket has.
func (q *Queue) Bucket() int {
	n, _ := q.bucket()
	return n
}

// Head returns the oldest operation.
// Requires: there is one.
func (q *Queue) Head() coll.Op { return q.list[0].op }

// Add appends an operation. apart says that it cannot share a collective with the operations before it, for a reason that this
// rank alone may have: it uses memory that they write.
func (q *Queue) Add(op coll.Op, apart bool) {
	q.list = append(q.list, entry{op, q.limits.Joins(op), apart})
}

// Want says that the bucket shall not wait for more operations: somebody waits for one that is in it or behind it. It does nothing
// while an agreement is under way; who still waits when that is over says so once more.
func (q *Queue) Want() { q.wanted = q.proposed == 0 && q.agreed == 0 && len(q.list) > 0 }

// Agreed says that the agreement that this rank has begun is complete, with that lowest proposal. It reports whether ranks can
// have come to this number.
func (q *Queue) Agreed(lowest uint64) bool {
	if q.proposed == 0 || lowest < 1 || lowest > uint64(q.proposed) {
		return false
	}
	q.agreed, q.proposed = int(lowest), 0
	return true
}

// Step is what the user of a Queue has to do next. At most one of its numbers is above 0; if both are 0 there is nothing to do.
type Step struct {
	Propose int // begin an agreement with this proposal
	Carry   int // issue one collective for so many of the oldest operations, which leave the queue
}

// Next returns the next step, and counts it as done.
func (q *Queue) Next() Step {
	switch {
	case q.proposed > 0 || len(q.list) == 0:
		return Step{}
	case q.agreed > 0:
		return q.carry(q.agreed)
	case !q.list[0].joins:
		return q.carry(1)
	}
	n, closed := q.bucket()
	if !closed && !q.wanted {
		return Step{}
	}
	q.wanted = false
	q.proposed = n
	return Step{Propose: n}
}

func (q *Queue) carry(n int) Step {
	q.list = slices.Delete(q.list, 0, n)
	q.agreed = 0
	return Step{Carry: n}
}

// bucket returns the number of operations in the bucket, and whether no other one can join it.
func (q *Queue) bucket() (n int, closed bool) {
	var bytes uint64
	for n < len(q.list) {
		e := q.list[n]
		if !e.joins || n > 0 && (e.apart || e.op.Type != q.list[0].op.Type || e.op.Reduce != q.list[0].op.Reduce) {
			return n, true
		}
		n++
		if bytes += e.op.In; n == q.limits.Count || bytes >= q.limits.Bytes {
			return n, true
		}
	}
	return n, false
}
