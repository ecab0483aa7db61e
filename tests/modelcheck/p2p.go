package modelcheck

// This file has the programs that decide which thread of a process drives p2p operations. Rank 0 publishes a frame for rank
// 1, whose engine is thread 1. Other threads of rank 1 post the recv and wait for it, or do not. As long as one of them
// waits it drives; otherwise the engine's bit is set, so that rank 0 wakes the engine. The frame must be taken in the end.
// The thread that takes it wakes the engine, so that the program ends.
//
// The model leaves out that the engine looks again after 20 ms whatever happens.

func (p *plan) unfinished() uint8 { return p.word("unfinished[rank 1]") }
func (p *plan) drivers() uint8    { return p.word("drivers[rank 1]") }
func (p *plan) written() uint8    { return p.word("written[fifo to rank 1]") }
func (p *plan) taken() uint8      { return p.word("taken[rank 1]") }

func sendFrame(b *builder) { b.publish(b.sc.written(), 1, seqCst, true) }

// take takes the frame, once, and ends the thread. In C it holds the p2p lock.
func (b *builder) take() (label uint8) {
	label = b.label()
	b.later = append(b.later, func() {
		lost := b.label()
		b.place(label)
		b.emit(instr{op: claim, word: b.sc.taken(), value: 1, order: seqCst, to: lost}, "take the frame")
		if b.thread != 1 {
			b.emit(instr{op: wakeBell, value: 1}, "wake the engine, which ends")
		}
		b.place(lost)
		b.emit(instr{op: end, value: uint8(finished)}, "end")
	})
	return label
}

// engineOfP2P is scr_engine_turn with look_at_p2p.
func engineOfP2P(b *builder) {
	s, take := b.sc, b.take()
	top, idle, over := b.label(), b.label(), b.label()
	b.place(top)
	b.bell()
	b.load(s.taken(), seqCst, equals, 0, over)
	b.load(s.unfinished(), seqCst, equals, 1, idle)
	if b.off != EngineBesideDriver {
		b.load(s.drivers(), seqCst, equals, 0, idle)
	}
	b.setEngineBit()
	if b.off != EngineNoLook {
		b.load(s.written(), seqCst, below, 1, take)
	}
	b.place(idle)
	b.emit(instr{op: futexWait}, "sleep")
	b.armed = false
	b.store(s.waitsFor(1), 0, seqCst)
	b.load(s.unfinished(), seqCst, equals, 1, top)
	b.load(s.written(), acquire, below, 1, take)
	b.jump(top)
	b.place(over)
}

func (b *builder) setEngineBit() {
	o := seqCst
	if b.off == EngineBitNotSeqCst {
		o = release
	}
	b.store(b.sc.waitsFor(1), 1, o)
}

// leaveToEngine is leave_to_engine.
func (b *builder) leaveToEngine(take uint8) {
	b.setEngineBit()
	if b.off != NoLookAfterEngineBit {
		b.load(b.sc.written(), seqCst, below, 1, take)
	}
}

// postP2P is scr_p2p_issue of an asynchronous operation.
func postP2P(b *builder) { b.post(b.take()) }

func (b *builder) post(take uint8) {
	s, driven := b.sc, b.label()
	if b.off != PostedAfterLook {
		b.store(s.unfinished(), 1, seqCst)
		b.load(s.written(), acquire, below, 1, take)
	}
	b.load(s.drivers(), seqCst, equals, 0, driven)
	if b.off != PostedAfterLook {
		b.leaveToEngine(take)
	}
	b.place(driven)
	if b.off == PostedAfterLook {
		b.store(s.unfinished(), 1, seqCst)
		b.load(s.written(), acquire, below, 1, take)
	}
}

// waitAWhile is scr_p2p_wait of another operation, or for one slice.
func waitAWhile(b *builder) { b.waitAWhile(b.take()) }

func (b *builder) waitAWhile(take uint8) {
	s, none, over := b.sc, b.label(), b.label()
	b.store(s.drivers(), 1, seqCst)
	b.store(s.waitsFor(1), 0, seqCst)
	b.load(s.unfinished(), seqCst, equals, 1, none)
	b.load(s.written(), acquire, below, 1, take)
	b.place(none)
	if b.off == LeavesBeforeCount {
		b.load(s.unfinished(), seqCst, equals, 1, over)
	}
	b.store(s.drivers(), 0, seqCst)
	if b.off == LeavesNothing {
		b.place(over)
		return
	}
	if b.off != LeavesBeforeCount {
		b.load(s.unfinished(), seqCst, equals, 1, over)
	}
	b.leaveToEngine(take)
	b.place(over)
	if b.off == LeavesBeforeCount {
		b.store(s.drivers(), 0, seqCst)
	}
}

func postAndWaitAWhile(b *builder) {
	take := b.take()
	b.post(take)
	b.waitAWhile(take)
}
