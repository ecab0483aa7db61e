package modelcheck

// await waits until the flag is at least need. Spinning and yielding are a thread that is not scheduled; what is left is
// one look, and then to sleep:
//
//	    flag >= need (acquire)?                on
//	    b := bell
//	    waits_for = 1 + peer (seq_cst)
//	    flag >= need (seq_cst)?                awake
//	    failure?                               report it
//	    left[peer], and flag < need again?     declare it
//	    record of a peer differs from mine?    declare it
//	    futex wait while bell = b
//	awake:
//	    waits_for = 0
//	    from the top
func (b *builder) await(flag, need uint8, peer int, o order) {
	top, sleep := b.label(), b.label()
	b.place(top)
	b.load(flag, o, atLeast, need, sleep)
	read := b.read
	b.later = append(b.later, func() {
		now := b.read
		b.read = read
		b.place(sleep)
		b.sleep(flag, need, peer, top)
		b.read = now
	})
}

func (b *builder) bell() {
	b.emit(instr{op: readBell}, "read the bell")
	b.armed = true
}

func (b *builder) sleep(flag, need uint8, peer int, top uint8) {
	s, awake := b.sc, b.label()
	if b.off == FailureBeforeBell {
		b.lookAtFailure()
	}
	if b.off == LeftBeforeBell {
		b.lookAtLeft(flag, need, peer, top)
	}
	if b.off == RecordsBeforeWaits {
		b.lookAtRecords()
	}
	if b.off != BellAfterLook && b.off != BellBetween {
		b.bell()
	}
	if b.off == FailureAfterBellOnly {
		b.lookAtFailure()
	}
	if b.off == LeftAfterBellOnly {
		b.lookAtLeft(flag, need, peer, awake)
	}
	o := seqCst
	if b.off == WaitsForNoFence {
		o = release
	}
	b.store(s.waitsFor(b.rank), uint8(1+peer), o)
	if b.off == BellBetween {
		b.bell()
	}
	switch b.off {
	case NoSecondLook:
	case SecondLookNotSeqCst:
		b.load(flag, acquire, below, need, awake)
	default:
		b.load(flag, seqCst, below, need, awake)
	}
	if b.off != FailureBeforeBell && b.off != FailureAfterBellOnly {
		b.lookAtFailure()
	}
	if b.off != LeftBeforeBell && b.off != LeftAfterBellOnly {
		b.lookAtLeft(flag, need, peer, awake)
	}
	if b.off != RecordsBeforeWaits {
		b.lookAtRecords()
	}
	if b.off == BellAfterLook {
		b.bell()
	}
	b.emit(instr{op: futexWait}, "sleep, waiting for %s >= %d", b.m.words[flag], need)
	b.armed = false
	b.place(awake)
	b.store(s.waitsFor(b.rank), 0, relaxed)
	b.jump(top)
}

func (b *builder) lookAtFailure() {
	if b.sc.mayFail {
		b.load(b.m.failure, acquire, equals, 0, b.raise)
	}
}

// lookAtLeft gives up when the peer has left and has not published before it did.
func (b *builder) lookAtLeft(flag, need uint8, peer int, ready uint8) {
	if !b.sc.goodbyes {
		return
	}
	again, left := b.label(), b.sc.left(peer)
	if b.off == LooksAtLeftOfLane {
		left = b.sc.laneWord("left[rank %d]", peer)
	}
	b.load(left, acquire, equals, 0, again)
	read := b.read
	b.later = append(b.later, func() {
		now := b.read
		b.read = read
		b.place(again)
		if b.off != NoLookAfterLeft {
			b.load(flag, acquire, below, need, ready)
		}
		b.jump(b.accuse)
		b.read = now
	})
}

// lookAtRecords compares the peers' records of this rank's call with its own.
func (b *builder) lookAtRecords() {
	if !b.sc.records || b.off == RecordsNotCompared {
		return
	}
	for _, p := range b.peers() {
		b.load(b.sc.record(p, b.number), acquire, zeroOr, b.call, b.accuse)
	}
}

// ---- failing ----

// noReads is for parts of a program in which a rank reads no slots any more.
const noReads = 200

// failing places the blocks in which a rank ends that does not get what it waits for.
func (b *builder) failing() {
	b.raise, b.accuse = b.label(), b.label()
	b.later = append(b.later, func() {
		b.read = noReads
		b.place(b.accuse)
		b.declare(b.raise)
		b.place(b.raise)
		b.openGate()
		b.report()
	})
}

// declare makes this thread's violation the group's first cause unless there is one. Threads of a rank take turns: only
// one may write the rank's record, once.
func (b *builder) declare(other uint8) {
	m, cause := b.m, uint8(1+b.thread)
	if b.sc.turns(b.rank) && b.off != DeclareTwice {
		b.emit(instr{op: claim, word: b.turn(), value: 1, order: seqCst, to: other}, "take the process's right to declare")
	}
	write := func() {
		b.store(m.records[b.rank], cause, relaxed)
		b.store(m.records[b.rank]+1, cause, relaxed)
	}
	if b.off != RecordAfterClaim {
		write()
	}
	won := b.label()
	switch b.off {
	case FailureOverwrites:
		b.store(m.failure, uint8(1+b.rank), seqCst)
	case ClaimRelaxed:
		b.emit(instr{op: claim, word: m.failure, value: uint8(1 + b.rank), to: won}, "compare-and-swap failure from 0 to %d", 1+b.rank)
	default:
		b.emit(instr{op: claim, word: m.failure, value: uint8(1 + b.rank), order: seqCst, to: won}, "compare-and-swap failure from 0 to %d, seq_cst", 1+b.rank)
	}
	b.place(won)
	if b.off == RecordAfterClaim {
		write()
	}
	if b.off != FailureWakesNobody {
		b.wakeAll(b.off == FailureWakesHostLane)
	}
}

// wakeAll wakes the bells of all ranks, in both lanes.
func (b *builder) wakeAll(hostLaneOnly bool) {
	for q := range b.m.ranks {
		if q != b.thread {
			b.emit(instr{op: wakeBell, value: uint8(q)}, "wake the bell of rank %d", q)
		}
	}
	for i, o := range b.sc.Others {
		if ti := b.m.ranks + i; o.Lane == deviceLane && ti != b.thread && !hostLaneOnly {
			b.emit(instr{op: wakeBell, value: uint8(ti)}, "wake the bell of rank %d, device lane", o.Rank)
		}
	}
}

// report ends with the first cause. A thread that left declaring to another one of its process waits for it here.
func (b *builder) report() {
	if b.sc.goesDown {
		b.emit(instr{op: end, value: uint8(failed)}, "end")
		return
	}
	b.load(b.m.failure, acquire, winner, 0, 0)
	b.emit(instr{op: loadRecord, value: 0}, "read the winner's record, first half")
	b.emit(instr{op: loadRecord, value: 1}, "read the winner's record, second half")
	b.emit(instr{op: end, value: uint8(failed)}, "end")
}

// goodbye leaves the group.
func (b *builder) goodbye() {
	b.read = noReads
	b.storeLeft()
	if b.off != GoodbyeWakesNobody {
		b.wakeAll(b.off == GoodbyeWakesHostLane)
	}
}

func (b *builder) storeLeft() {
	o := seqCst
	if b.off == LeftRelaxed {
		o = relaxed
	}
	b.store(b.sc.left(b.rank), 1, o)
}
