package pgbackend

import (
	"errors"
	"sync"
	"time"

	"sagecomm/fusion"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

// buckets gathers the collectives on host memory of a group that fuses: docs/protocol.md, section 14. fusion.Queue
// decides; buckets tells it what happens, and carries out what it decides. The runner holds every operation until the
// queue lets it go, in the order of issue, so nothing overtakes a bucket.
type buckets struct {
	g      *Group
	limits fusion.Limits

	mu        sync.Mutex // nobody waits for a peer under it
	queue     *fusion.Queue
	memory    []memoryUse // of the operations in the queue
	agreement *agreement  // under way; nil: none
	opened    time.Time   // when the oldest operation came to the head of the queue
	timer     *time.Timer // made at its first use
	ticking   bool
	carried   bool // a collective was issued by the function that has the lock
	// A step has failed or has panicked, so the queue and the runner's list may differ. No further step is made: the
	// group fails.
	stuck bool
}

// agreement is an agreement that is under way.
type agreement struct {
	runner.Agreement
	watched bool // a done function ends and frees it
}

// bucketTick is how often a rank with an open bucket looks whether a peer has begun an agreement, or the bucket is old.
const bucketTick = 500 * time.Microsecond

// bucketLinger is the age at which a rank proposes a bucket that nobody waits for. That closes nothing: the lowest
// proposal of all ranks does. Tests change it.
var bucketLinger = 2 * time.Millisecond

func newBuckets(g *Group, limits fusion.Limits) *buckets {
	return &buckets{g: g, limits: limits, queue: fusion.NewQueue(limits)}
}

// fusionOff is what fusionLimits returns for a group that does not fuse.
const fusionOff = "off"

// fusionLimits returns what is fused, for texts and to compare ranks.
func (g *Group) fusionLimits() string {
	if g.buckets == nil {
		return fusionOff
	}
	return g.buckets.limits.String()
}

// issue issues a collective on host memory.
func (b *buckets) issue(call runner.Call, op coll.Op) *coll.Failure {
	var refused error
	b.locked(func() error {
		if refused = b.g.run.Hold(call, op.Bytes()); refused != nil {
			return nil
		}
		use := memoryUse{bytes: op.Bytes()}
		if b.limits.Joins(op) {
			use = memoryOf(call, op)
		}
		b.queue.Add(op, b.shares(use))
		b.memory = append(b.memory, use)
		if b.queue.Len() == 1 {
			b.opened = time.Now()
		}
		return b.begin()
	})
	return b.g.issued(op, refused)
}

// want calls use with the agreement that a thread waits for which waits for a held operation, and begins one unless
// there is one under way.
func (b *buckets) want(use func(runner.Agreement)) {
	b.locked(func() error {
		if err := b.settle(); err != nil {
			return err
		}
		if err := b.advance(); err != nil {
			return err
		}
		b.queue.Want()
		err := b.advance()
		if b.agreement != nil && err == nil {
			use(b.agreement.Agreement)
		}
		return err
	})
}

// tick makes this rank propose a bucket that is old, or about which a peer has begun an agreement. Peers that wait
// depend on it if no thread of this rank issues or waits. It also completes operations for which no thread of this rank
// waits, where a thread has waited for others in their bucket.
func (b *buckets) tick() {
	if !b.g.life.acquire() {
		return
	}
	defer b.g.life.release()
	var fault *coll.Failure
	defer b.g.recoverInto(&fault)
	b.g.run.Claim()
	if b.locked(func() error {
		b.ticking = false
		if time.Since(b.opened) >= bucketLinger || b.peerHasBegun() {
			b.queue.Want()
		}
		return b.begin()
	}) {
		b.g.run.Begin()
	}
}

// peerHasBegun reports whether a peer has begun a collective that this rank has not numbered. It is an agreement,
// unless the ranks make different calls.
func (b *buckets) peerHasBegun() bool {
	mine := b.g.run.Sequence()
	for rank := range b.g.size {
		if rank != b.g.rank && b.g.run.Recorded(rank) > mine {
			return true
		}
	}
	return false
}

// done ends an agreement, unless a thread that waited has done so.
func (b *buckets) done(a *agreement) {
	defer a.Free()
	if !b.g.life.acquire() {
		return
	}
	defer b.g.life.release()
	var fault *coll.Failure
	defer b.g.recoverInto(&fault)
	if b.locked(func() error {
		if b.agreement != a {
			return nil
		}
		if err := b.settle(); err != nil {
			return err
		}
		return b.begin()
	}) && !a.WaitedFor() {
		b.g.run.Begin()
	}
}

// locked calls f with the lock, then sees to it that an agreement and a bucket that are left do not depend on callers.
// If f returns an error, the group fails: operations that were issued cannot be carried out. It reports whether f has
// issued collectives, which somebody has to drive.
func (b *buckets) locked(f func() error) (carried bool) {
	var watch *agreement
	err := func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.carried = false
		err := f()
		carried = b.carried
		if a := b.agreement; a != nil && !a.watched {
			a.watched = true
			watch = a
		}
		if !b.ticking && (!b.stuck && b.agreement == nil && b.queue.Len() > 0 || b.g.run.Carrying()) {
			b.ticking = true
			if b.timer == nil {
				b.timer = time.AfterFunc(bucketTick, b.tick)
			} else {
				b.timer.Reset(bucketTick)
			}
		}
		return err
	}()
	if watch != nil {
		watch.OnDone(func(*coll.Failure) { b.done(watch) }) // it may call it at once, so without the lock
	}
	var stuck *stuckError
	if errors.As(err, &stuck) {
		b.g.issued(stuck.op, stuck.err)
	}
	return carried
}

// stuckError is why held operations cannot be carried out.
type stuckError struct {
	op  coll.Op
	err error
}

func (e *stuckError) Error() string { return e.err.Error() }

// begin is advance for a caller that does not wait for the agreement. It lets this rank's proposal out.
// Requires: b.mu.
func (b *buckets) begin() error {
	for {
		if err := b.advance(); err != nil || b.agreement == nil || b.agreement.watched || !b.agreement.Begin() {
			return err
		}
		if err := b.settle(); err != nil {
			return err
		}
	}
}

// advance carries out steps of the queue until there is none.
// Requires: b.mu.
func (b *buckets) advance() error {
	if b.stuck {
		return nil
	}
	carrier := b.g.engine.(engine.Carrier)
	for b.queue.Len() > 0 {
		op := b.queue.Head()
		b.stuck = true // stays so if the step returns an error or panics
		switch step := b.queue.Next(); {
		case step.Carry > 0:
			if step.Carry > 1 {
				op.In, op.Parts = 0, step.Carry
				for _, use := range b.memory[:step.Carry] {
					op.In += use.bytes
				}
				op.Out = op.In
			}
			b.memory = append(b.memory[:0], b.memory[step.Carry:]...)
			b.opened = time.Now()
			b.carried = true
			if err := carrier.IssueCarrier(step.Carry, op); err != nil {
				return &stuckError{op, err}
			}
		case step.Propose > 0:
			a, err := carrier.Agree(op, step.Propose)
			if err != nil {
				return &stuckError{op, err}
			}
			b.agreement = &agreement{Agreement: a}
		default:
			b.stuck = false
			return nil
		}
		b.stuck = false
	}
	return nil
}

// settle ends the agreement that is under way, if it is complete. If it has failed, the group goes down, and the runner
// fails what is held. Requires: b.mu.
func (b *buckets) settle() error {
	a := b.agreement
	if a == nil {
		return nil
	}
	lowest, complete := a.Lowest()
	if !complete {
		return nil
	}
	b.agreement = nil
	if !a.watched {
		a.Free()
	}
	if lowest == 0 {
		b.stuck = true
	} else if !b.queue.Agreed(lowest) {
		b.stuck = true
		return &stuckError{b.queue.Head(), errors.New("internal error: ranks have agreed on more operations than this one has proposed; please report this")}
	}
	return nil
}

// memoryUse is the memory of an operation that may join others.
type memoryUse struct {
	bytes         uint64 // by which the operation is identified
	read, written []runner.Segment
}

func memoryOf(call runner.Call, op coll.Op) memoryUse {
	use := memoryUse{bytes: op.Bytes(), read: call.In(), written: call.Out()}
	if len(use.read) == 1 && len(use.written) == 1 && use.read[0] == use.written[0] {
		use.read = nil
	}
	return use
}

// shares reports whether an operation uses memory that one of those before it writes, or writes memory that they use.
// In one collective it would not come after them. Requires: b.mu.
func (b *buckets) shares(use memoryUse) bool {
	for _, before := range b.memory[max(0, len(b.memory)-b.limits.Count):] {
		if overlap(before.written, use.written) || overlap(before.written, use.read) || overlap(before.read, use.written) {
			return true
		}
	}
	return false
}

func overlap(list, other []runner.Segment) bool {
	for _, a := range list {
		for _, b := range other {
			if a.Data < b.Data+uintptr(b.Bytes) && b.Data < a.Data+uintptr(a.Bytes) {
				return true
			}
		}
	}
	return false
}
