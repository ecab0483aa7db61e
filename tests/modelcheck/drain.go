package modelcheck

// This file has the programs of section 4 of the protocol and of DOWN in section 6: threads of rank 1 that issue, drive and
// take their group down. scr_submit, scr_issue, scr_drive, scr_drain, scr_group_down and look_at_collectives are their
// sources in C. drain_threads.go has the threads that are made of them.
//
// Rank 1 issues two operations. Operation i waits for ticket i in the slot of rank 0, copies the payload to the buffer of
// the operation, is taken out of the queue and marked complete. Rank 0 stands for all other ranks: it may publish any of
// the tickets, in any order. Thread 1 is the engine of rank 1.
//
// The group word of the model has no bit QUEUED, which is set where more operations were issued than taken out: the queue
// lock makes both one step. The model leaves out that a waiter looks again after 5 ms whether the drive lock is free, and
// the 10 ms that bound a drain.

// The group word of rank 1.
const (
	isLocked  = 1
	isDown    = 2
	issuedOne = 4 // two bits
	poppedOne = 16
)

const engineThread = 1

// The word waits_for of rank 1.
const (
	driverWaits = 1
	engineWaits = 2
)

// Values of done.
const (
	notDone   = 0
	succeeded = 1
	ended     = 2 // with the first cause
)

func (p *plan) group() uint8      { return p.word("group word[rank 1]") }
func (p *plan) over() uint8       { return p.word("threads that have ended[rank 1]") }
func (p *plan) done(op int) uint8 { return p.word("done[operation %d]", op) }
func (p *plan) buffer(op int) uint8 {
	w := p.word("buffer[operation %d]", op)
	p.m.completes[w] = 1 + p.done(op)
	return w
}

// change is a compare-and-swap loop: it adds to a word unless the bits of mask differ from want.
func (b *builder) change(word, mask, want, add, to uint8, what string) {
	b.emit(instr{op: change, word: word, peer: mask, want: want, value: add, to: to}, "%s", what)
}

// always is change without a condition.
func (b *builder) always(word, add uint8, what string) {
	next := b.label()
	b.change(word, 0, 0, add, next, what)
	b.place(next)
}

// has goes on if the bits of mask in the group word are want, else to `to`. The word is loaded relaxed, as C does it.
func (b *builder) has(mask, want, to uint8, what string) {
	b.emit(instr{op: load, word: b.sc.group(), test: masked, peer: mask, value: want, to: to}, "look whether %s", what)
}

func (b *builder) isQueued(to uint8) {
	b.emit(instr{op: load, word: b.sc.group(), test: queued, to: to}, "look whether the queue has a run")
}

// ring wakes the threads that may sleep on the driver's bell of rank 1.
func (b *builder) ring() {
	for ti := b.sc.Ranks; ti < b.sc.Ranks+len(b.sc.Others); ti++ {
		if ti != b.thread {
			b.emit(instr{op: wakeBell, value: uint8(ti)}, "wake the bell of the driver, thread %d", ti)
		}
	}
}

func (b *builder) ringEngine() {
	b.emit(instr{op: wakeBell, value: engineThread}, "wake the bell of the engine")
}

// ---- rank 0 ----

// publishTo publishes a ticket and wakes the thread that waits in rank 1.
func (b *builder) publishTo(ticket int) {
	b.store(b.sc.data(0, ticket, 0), data(1, false, ticket), relaxed)
	b.store(b.sc.filled(0, ticket), uint8(ticket+1), seqCst)
	engine, over := b.label(), b.label()
	b.load(b.sc.waitsFor(1), seqCst, equals, driverWaits, engine)
	b.ring()
	b.jump(over)
	b.place(engine)
	b.load(b.sc.waitsFor(1), seqCst, equals, engineWaits, over)
	b.ringEngine()
	b.place(over)
}

// publishAndFail publishes a ticket, declares a failure and ends with it.
func publishAndFail(ticket int) func(*builder) {
	return func(b *builder) {
		b.publishTo(ticket)
		b.declare(b.raise)
		b.ring()
		b.report()
	}
}

// ---- driving ----

// driver writes the steps of one thread of rank 1 that holds the drive lock. The lock is free again at the label back.
type driver struct {
	*builder
	until  int // the operation that the thread waits for
	fast   bool
	engine bool
	back   uint8 // label
	drain  uint8 // label
	twice  uint8 // label: two completions of one operation
}

func (b *builder) driver(until int, back uint8) *driver {
	d := &driver{builder: b, until: until, back: back, drain: b.label(), twice: b.label(), engine: b.thread == engineThread}
	b.later = append(b.later, func() {
		b.place(d.drain)
		d.drainQueue()
		b.place(d.twice)
		for op := range 2 {
			b.load(b.sc.done(op), seqCst, expect, notDone, 0)
		}
	})
	return d
}

func (d *driver) tryLock(to uint8) {
	d.change(d.sc.group(), isLocked, 0, isLocked, to, "take the drive lock")
}

func (d *driver) unlock() {
	d.always(d.sc.group(), 256-isLocked, "release the drive lock")
	if d.engine || d.off == LeavesSilently {
		return
	}
	over := d.label()
	d.isQueued(over)
	d.ringEngine()
	d.place(over)
}

// complete takes a run out of the queue and marks it complete.
func (d *driver) complete(op int, how uint8) {
	d.always(d.sc.group(), poppedOne, "take the run out of the queue")
	d.emit(instr{op: claim, word: d.sc.done(op), value: how, order: seqCst, to: d.twice}, "mark operation %d complete: %d", op, how)
}

// succeed carries out the copy of an operation whose ticket is there.
func (d *driver) succeed(op int) {
	d.load(d.sc.data(0, op, 0), relaxed, expect, data(1, false, op), 0)
	if d.off == CompleteBeforeCopy {
		d.complete(op, succeeded)
	}
	d.store(d.sc.buffer(op), 1, relaxed)
	d.code[len(d.code)-1].depends = true
	if d.off != CompleteBeforeCopy {
		d.complete(op, succeeded)
	}
}

// atHead goes on if the operation is the first of the queue.
func (d *driver) atHead(op int, to uint8) {
	d.has(3*poppedOne, uint8(op)*poppedOne, to, "the operation is the first of the queue")
}

// drive is scr_drive with the steps of its callers when it is blocked. Requires: the drive lock.
func (d *driver) drive() {
	leave, loop := d.label(), d.label()
	d.place(loop)
	d.has(isDown, 0, d.drain, "the group is not down")
	d.isQueued(leave)
	for op := range 2 {
		next, blocked := d.label(), d.label()
		d.atHead(op, next)
		d.load(d.sc.filled(0, op), acquire, atLeast, uint8(op+1), blocked)
		d.succeed(op)
		if op == d.until || d.engine {
			d.jump(leave)
		} else {
			d.jump(loop)
		}
		d.place(next)
		d.later = append(d.later, func() {
			d.place(blocked)
			if d.engine {
				d.sleepUnlocked(op)
			} else {
				d.sleepLocked(op, loop)
			}
		})
	}
	d.place(leave)
	d.unlock()
	d.jump(d.back)
}

// lookAround goes to an incident if the group has failed or is down.
func (d *driver) lookAround(incident uint8) {
	if d.sc.mayFail {
		d.load(d.m.failure, acquire, equals, 0, incident)
	}
	if d.off != NoLookAtDown {
		d.has(isDown, 0, incident, "the group is not down")
	}
}

// sleepLocked is scr_relax.
func (d *driver) sleepLocked(op int, again uint8) {
	awake, incident := d.label(), d.label()
	d.bell()
	d.store(d.sc.waitsFor(1), driverWaits, seqCst)
	d.load(d.sc.filled(0, op), seqCst, below, uint8(op+1), awake)
	d.lookAround(incident)
	d.emit(instr{op: futexWait}, "sleep, waiting for operation %d", op)
	d.armed = false
	d.place(awake)
	d.store(d.sc.waitsFor(1), 0, relaxed)
	d.jump(again)
	d.place(incident)
	if d.fast && d.off == FastFailsAlone {
		d.complete(op, ended)
	}
	d.unlock()
	d.takeDown()
}

// sleepUnlocked is look_at_collectives, with the sleep of scr_engine_turn, which has read the bell.
func (d *driver) sleepUnlocked(op int) {
	incident, there, over := d.label(), d.label(), d.label()
	d.lookAround(incident)
	d.store(d.sc.waitsFor(1), engineWaits, seqCst)
	d.load(d.sc.filled(0, op), seqCst, below, uint8(op+1), there)
	d.unlock()
	d.emit(instr{op: futexWait}, "sleep, waiting for operation %d", op)
	d.change(d.sc.waitsFor(1), 0xff, engineWaits, 256-engineWaits, over, "withdraw waits_for")
	d.place(over)
	d.jump(d.back)
	d.place(there)
	d.unlock()
	d.change(d.sc.waitsFor(1), 0xff, engineWaits, 256-engineWaits, over, "withdraw waits_for")
	d.jump(d.back)
	d.place(incident)
	d.unlock()
	d.takeDown()
}

// takeDown is scr_group_down. It does not return: it goes back.
func (d *driver) takeDown() {
	already, held := d.label(), d.label()
	d.change(d.sc.group(), isDown, 0, isDown, already, "set DOWN")
	d.place(already)
	if d.off != DownWakesNobody {
		d.ring()
	}
	if d.off != DrainWithoutLock {
		d.tryLock(held)
	}
	d.jump(d.drain)
	d.place(held)
	if d.off != DownLeavesEngine {
		d.ringEngine()
	}
	d.jump(d.back)
}

// drainQueue is scr_drain, and releases the lock. Requires: the drive lock.
func (d *driver) drainQueue() {
	over := d.label()
	tries := [2]uint8{d.label(), d.label()}
	fails := [2]uint8{d.label(), d.label()}
	d.isQueued(over)
	d.atHead(0, tries[1])
	for op := range 2 {
		d.place(tries[op])
		if d.off == DrainTriesNothing {
			d.jump(fails[op])
		} else {
			d.load(d.sc.filled(0, op), acquire, atLeast, uint8(op+1), fails[op])
			d.succeed(op)
			d.isQueued(over)
		}
	}
	d.jump(over)
	for op := range 2 {
		d.place(fails[op])
		d.complete(op, ended)
		d.isQueued(over)
		if op == 0 && d.off == DrainGoesOn {
			d.jump(tries[1])
		}
	}
	d.place(over)
	if d.off != DrainWithoutLock {
		d.unlock()
	}
	if d.off != DownLeavesEngine {
		d.ringEngine()
	}
	d.jump(d.back)
}
