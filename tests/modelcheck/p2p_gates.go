package modelcheck

// This file has the programs that decide which thread looks at the gates of p2p operations (docs/protocol.md, section 11).
// Thread 0 is the device of rank 1: it stores input_ready, and wakes nobody. Thread 1 is the engine of rank 1. Thread 2 posts a
// send or recv, and does not wait. Where there is a thread 3, it waits for another operation of the lane, so that it drives. The
// operation must go on in the end, and whoever goes on with it wakes the others, so that the programs end.
//
// A sleep of 100 us is a jump to the beginning: nobody has to end it.

func (p *plan) inputIsReady() uint8 { return p.word("input_ready[rank 1]") }
func (p *plan) behind() uint8       { return p.word("behind[rank 1]") }

// threads returns how many threads a scenario has.
func (p *plan) threads() int { return p.Ranks + len(p.Others) }

func raiseInputReady(b *builder) {
	for _, word := range []func() uint8{b.sc.unfinished, b.sc.drivers, b.sc.taken, b.sc.behind} {
		word() // a thread that ends with an error, which none does, would store to the first words
	}
	b.store(b.sc.inputIsReady(), 1, release)
}

// goOn is a label behind which the thread goes on with the operation, and ends.
func (b *builder) goOn() (label uint8) {
	label = b.label()
	b.later = append(b.later, func() {
		lost := b.label()
		b.place(label)
		b.emit(instr{op: claim, word: b.sc.taken(), value: 1, order: seqCst, to: lost}, "go on with the operation")
		for _, other := range []int{1, 3} {
			if other != b.thread && other < b.sc.threads() {
				b.emit(instr{op: wakeBell, value: uint8(other)}, "wake thread %d, which ends", other)
			}
		}
		b.place(lost)
		b.emit(instr{op: end, value: uint8(finished)}, "end")
	})
	return label
}

// engineAtGates is scr_engine_turn with look_at_p2p.
func engineAtGates(b *builder) {
	s, goOn := b.sc, b.goOn()
	top, idle, over := b.label(), b.label(), b.label()
	b.place(top)
	b.bell()
	b.load(s.taken(), seqCst, equals, 0, over)
	b.load(s.unfinished(), seqCst, equals, 1, idle)
	b.load(s.drivers(), seqCst, equals, 0, idle)
	b.load(s.inputIsReady(), acquire, below, 1, goOn)
	if b.off != EngineSleepsAtGates {
		b.load(s.behind(), seqCst, equals, 0, top)
	}
	b.place(idle)
	b.emit(instr{op: futexWait}, "sleep")
	b.armed = false
	b.jump(top)
	b.place(over)
}

// postAtGate is scr_p2p_submit and scr_p2p_begin.
func postAtGate(b *builder) {
	s, goOn, driven, over := b.sc, b.goOn(), b.label(), b.label()
	b.store(s.unfinished(), 1, seqCst)
	b.store(s.behind(), 1, seqCst)
	b.load(s.inputIsReady(), acquire, below, 1, goOn)
	b.load(s.drivers(), seqCst, equals, 0, driven)
	if b.off != PostedAtGateWakesNoEngine {
		b.emit(instr{op: wakeBell, value: 1}, "wake the engine")
	}
	b.jump(over)
	b.place(driven)
	if b.sc.threads() > 3 && b.off != PostedAtGateWakesNoDriver {
		b.emit(instr{op: wakeBell, value: 3}, "wake the driver")
	}
	b.place(over)
}

// driveAtGates is scr_p2p_wait of another operation. With `leaves` the thread may stop at any time after its first look.
func driveAtGates(leaves bool) func(b *builder) {
	return func(b *builder) {
		s, goOn := b.sc, b.goOn()
		top, over, leave, none := b.label(), b.label(), b.label(), b.label()
		b.store(s.drivers(), 1, seqCst)
		b.place(top)
		if b.off != DriverLooksBeforeBell {
			b.bell()
		}
		b.load(s.taken(), seqCst, equals, 0, over)
		b.load(s.unfinished(), seqCst, equals, 1, none)
		b.load(s.inputIsReady(), acquire, below, 1, goOn)
		b.place(none)
		if leaves {
			b.jump(leave)
		}
		if b.off != DriverSleepsAtGates {
			b.load(s.behind(), seqCst, equals, 0, top)
		}
		if b.off == DriverLooksBeforeBell {
			b.bell()
		}
		b.emit(instr{op: futexWait}, "sleep")
		b.armed = false
		b.jump(top)
		b.place(leave)
		b.armed = false
		b.store(s.drivers(), 0, seqCst)
		b.load(s.unfinished(), seqCst, equals, 1, over)
		b.load(s.inputIsReady(), acquire, below, 1, goOn)
		if b.off != LeavesGatesToNobody {
			b.emit(instr{op: wakeBell, value: 1}, "wake the engine")
		}
		b.place(over)
	}
}

var p2pGateScenarios = []Scenario{
	{Name: "a p2p operation at a gate that nobody waits for", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}},
		parts: []func(*builder){raiseInputReady, engineAtGates, postAtGate}},
	{Name: "a p2p operation at a gate, posted while a thread waits for another one", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}, {Rank: 1}},
		parts: []func(*builder){raiseInputReady, engineAtGates, postAtGate, driveAtGates(false)}},
	{Name: "a p2p operation at a gate, posted while a thread stops waiting", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}, {Rank: 1}},
		parts: []func(*builder){raiseInputReady, engineAtGates, postAtGate, driveAtGates(true)}},
}

var p2pGateMutations = []Mutation{
	{EngineSleepsAtGates, "the engine sleeps although an operation waits for its stream", "look_at_p2p", "a p2p operation at a gate that nobody waits for", Deadlock},
	{PostedAtGateWakesNoEngine, "who posts an operation at a gate does not wake the engine", "leave_to_engine", "a p2p operation at a gate that nobody waits for", Deadlock},
	{DriverSleepsAtGates, "a driver sleeps although an operation waits for its stream", "drive_until", "a p2p operation at a gate, posted while a thread waits for another one", Deadlock},
	{DriverLooksBeforeBell, "a driver looks whether operations wait for their streams before it reads its bell", "drive_until", "a p2p operation at a gate, posted while a thread waits for another one", Deadlock},
	{PostedAtGateWakesNoDriver, "who posts an operation at a gate does not wake a driver", "go_on", "a p2p operation at a gate, posted while a thread waits for another one", Deadlock},
	{LeavesGatesToNobody, "who stops waiting does not wake the engine for operations at gates", "leave_to_engine", "a p2p operation at a gate, posted while a thread stops waiting", Deadlock},
}
