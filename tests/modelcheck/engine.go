package modelcheck

// awaitAsEngine is what the progress engine does until a flag is at least need: scr_engine_turn with look_at_collectives.
//
//	top:
//	    b := bell
//	    flag >= need (acquire)?         on
//	    failure?                        report it
//	    waits_for = 1 + peer (seq_cst)
//	    flag >= need (seq_cst)?         awake
//	    futex wait while bell = b
//	awake:
//	    waits_for = 0
//	    from the top
//
// It looks at failure before it stores waits_for: a rank that fails wakes every bell, and the bell was read before.
func (b *builder) awaitAsEngine(flag, need uint8, peer int) {
	top, sleep := b.label(), b.label()
	b.place(top)
	if b.off != EngineBellAfterLook {
		b.bell()
	}
	b.load(flag, acquire, atLeast, need, sleep)
	b.armed = false
	read := b.read
	b.later = append(b.later, func() {
		now := b.read
		b.read = read
		b.place(sleep)
		b.sleepAsEngine(flag, need, peer, top)
		b.read = now
	})
}

func (b *builder) sleepAsEngine(flag, need uint8, peer int, top uint8) {
	awake := b.label()
	b.armed = b.off != EngineBellAfterLook
	b.lookAtFailure()
	o := seqCst
	if b.off == EngineWaitsForNoFence {
		o = release
	}
	b.store(b.sc.waitsFor(b.rank), uint8(1+peer), o)
	switch b.off {
	case EngineNoSecondLook:
	case EngineSecondLookNotSeqCst:
		b.load(flag, acquire, below, need, awake)
	default:
		b.load(flag, seqCst, below, need, awake)
	}
	if b.off == EngineBellAfterLook {
		b.bell()
	}
	b.emit(instr{op: futexWait}, "sleep, waiting for %s >= %d", b.m.words[flag], need)
	b.armed = false
	b.place(awake)
	b.store(b.sc.waitsFor(b.rank), 0, relaxed)
	b.jump(top)
}
