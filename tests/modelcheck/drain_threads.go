package modelcheck

// This file has the threads of rank 1 that drain.go describes.

// submit is scr_submit of the next operation.
func (b *builder) submit(refused uint8) {
	b.change(b.sc.group(), isDown, 0, issuedOne, refused, "number and queue an operation")
	b.ringEngine()
}

// waitFor is scr_wait: a thread that finds the drive lock taken sleeps until the operation is complete.
func (b *builder) waitFor(op int) {
	top := b.label()
	b.place(top)
	d := b.driver(op, top)
	d.waits(op, d.label())
}

func (d *driver) waits(op int, locked uint8) {
	over, taken := d.label(), d.label()
	d.load(d.sc.done(op), seqCst, equals, notDone, over)
	d.tryLock(taken)
	d.place(locked)
	d.drive()
	d.place(taken)
	d.untilDone(op)
	d.place(over)
}

func (b *builder) untilDone(op int) {
	b.load(b.sc.done(op), acquire, risen, 0, 0)
}

// ends ends the thread and records the outcomes of its operations.
func (b *builder) ends() {
	first, second, both := b.label(), b.label(), b.label()
	b.always(b.sc.over(), 1, "end")
	b.ringEngine()
	b.load(b.sc.done(0), acquire, equals, succeeded, first)
	b.load(b.sc.done(1), acquire, equals, succeeded, second)
	b.emit(instr{op: end, value: uint8(finished)}, "end: both have succeeded")
	b.place(second)
	b.emit(instr{op: end, value: uint8(firstOnly)}, "end: the first has succeeded")
	b.place(first)
	b.load(b.sc.done(1), acquire, equals, succeeded, both)
	b.emit(instr{op: end, value: uint8(outOfOrder)}, "end: the second has succeeded")
	b.place(both)
	b.emit(instr{op: end, value: uint8(failed)}, "end: none has succeeded")
}

// issueAndWait issues both operations and waits for them, or for the first one alone: then the engine drives the second.
func issueAndWait(waits int) func(*builder) {
	return func(b *builder) {
		refused, first := b.label(), b.label()
		b.submit(refused)
		b.submit(first)
		b.place(first)
		b.waitFor(0)
		b.has(3*issuedOne, 2*issuedOne, refused, "the second was not refused")
		if waits == 2 {
			b.waitFor(1)
		} else {
			b.untilDone(1)
		}
		b.place(refused)
		b.ends()
	}
}

// issueFast issues the first operation on the fast path.
func issueFast(b *builder) {
	never, top, locked := b.label(), b.label(), b.label()
	d := b.driver(0, top)
	d.fast = true
	b.change(b.sc.group(), 0xff, 0, issuedOne+isLocked, never, "number an operation and take the drive lock")
	b.jump(locked)
	b.place(never)
	b.place(top)
	d.waits(0, locked)
	b.ends()
}

// issueBehind issues the second operation behind that of another thread.
func issueBehind(b *builder) {
	refused := b.label()
	b.load(b.sc.group(), acquire, risen, 0, 0)
	b.submit(refused)
	b.waitFor(1)
	b.place(refused)
	b.ends()
}

// takeDownWhen takes the group down when a word is no longer 0: as a thread does that sees the failure of another rank, or
// as a user does who destroys the group.
func takeDownWhen(word func(*plan) uint8) func(*builder) {
	return func(b *builder) {
		b.load(word(b.sc), acquire, risen, 0, 0)
		over := b.label()
		b.driver(-1, over).takeDown()
		b.place(over)
		b.emit(instr{op: end, value: uint8(finished)}, "end")
	}
}

// engineOfCollectives is scr_engine_turn until so many threads have ended.
func engineOfCollectives(threads int) func(*builder) {
	return func(b *builder) {
		top, idle, more := b.label(), b.label(), b.label()
		d := b.driver(-1, top)
		b.place(top)
		b.bell() // which makes all that follows armed: a ring counts until the engine reads its bell again
		b.emit(instr{op: load, word: b.sc.over(), order: seqCst, test: masked, peer: 0xff, value: uint8(threads), to: more}, "look whether all threads have ended")
		b.emit(instr{op: end, value: uint8(finished)}, "end")
		b.place(more)
		b.isQueued(idle)
		d.tryLock(idle)
		d.drive()
		b.place(idle)
		b.emit(instr{op: futexWait}, "sleep: another thread drives, or there is nothing to do")
		b.jump(top)
	}
}
