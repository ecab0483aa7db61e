package modelcheck

// This file has section 11 of the protocol: the gate of a run and the two streams of its device, each of which is a thread
// of the rank. scr_gate_enter, scr_gate_leave and scr_gate_open are the sources of the run's side in C; the commands of the
// streams are those of the section.
//
// Nobody is woken by a device, so a driver that is blocked at a gate polls. Polling is a load that is not satisfied before
// the word has risen, or before the driver sees that its group fails or is down.

// stream is what a thread does that is a stream of a device.
type stream uint8

const (
	noStream stream = iota
	copyIn
	copyOut
)

// opened is the value of input_taken and output_done of a run that has ended with an error.
const opened = 255

// gate is how the run of a rank uses its gate.
type gate struct {
	window  int
	in, out bool // a stream moves the input, the output
}

// streamOf returns the thread that is the stream of a rank's device.
func (p *plan) streamOf(rank int, which stream) (thread int, ok bool) {
	for i, o := range p.Others {
		if o.Rank == rank && o.Stream == which {
			return p.Ranks + i, true
		}
	}
	return 0, false
}

// gateOf returns the gate of a rank, nil if no stream belongs to it.
func (p *plan) gateOf(rank int, off Switch) *gate {
	_, in := p.streamOf(rank, copyIn)
	_, out := p.streamOf(rank, copyOut)
	if !in && !out {
		return nil
	}
	g := &gate{window: p.Window, in: in, out: out}
	if off == WindowLikeLag {
		g.window--
	}
	return g
}

func (b *builder) gateWord(name string) uint8 {
	return b.sc.word("%s[rank %d, gate %d]", name, b.rank, b.gateNumber)
}
func (b *builder) inputReady() uint8  { return b.gateWord("input_ready") }
func (b *builder) outputTaken() uint8 { return b.gateWord("output_taken") }
func (b *builder) inputTaken() uint8  { return b.gateWord("input_taken") }
func (b *builder) outputDone() uint8  { return b.gateWord("output_done") }

func (p *plan) down(rank int) uint8     { return p.word("DOWN[rank %d]", rank) }
func (p *plan) hasEnded(rank int) uint8 { return p.word("the run has ended[rank %d]", rank) }
func (p *plan) issued(rank int) uint8   { return p.word("operations issued[rank %d]", rank) }

// input is the place of a unit. Where the group goes down, another thread may read the next operation's input there.
func (b *builder) input(unit int) uint8 {
	w := b.sc.word("input[rank %d, gate %d, unit %d]", b.rank, b.gateNumber, unit%b.gate.window)
	b.m.isUnit[w] = true
	if b.off != OutputOverInput && !b.sc.goesDown {
		b.m.takenBy[w] = uint8(1 + b.rank)
	}
	return w
}

func (b *builder) output(unit, share int) uint8 {
	if b.off == OutputOverInput {
		return b.input(unit)
	}
	w := b.sc.word("output[rank %d, gate %d, unit %d, share %d]", b.rank, b.gateNumber, unit%b.gate.window, share)
	b.m.isUnit[w] = true
	if thread, ok := b.sc.streamOf(b.rank, copyOut); ok {
		b.m.takenBy[w] = uint8(1 + thread)
	}
	return w
}

// ---- the run ----

// enter waits until the unit may be begun.
func (b *builder) enter(unit, units int) {
	g := b.gate
	if g == nil {
		return
	}
	n, m := units, units
	if b.off != WaitsForAllUnits {
		if !g.in {
			n = 0
		}
		if !g.out {
			m = 0
		}
	}
	o := acquire
	if b.off == InputReadyNotAcquired {
		o = relaxed
	}
	if b.off != NoWaitForInputReady {
		b.awaitDevice(b.inputReady(), min(unit+1, n), o)
	}
	if b.off != NoWaitForOutputTaken {
		o = acquire
		if b.off == OutputTakenNotAcquired {
			o = relaxed
		}
		b.awaitDevice(b.outputTaken(), min(unit+1-g.window, m), o)
	}
}

// awaitDevice polls a word that a device writes. A driver that sees that its group fails or is down looks at the word once
// more before it gives up.
func (b *builder) awaitDevice(word uint8, need int, o order) {
	if need <= 0 {
		return
	}
	top, look := b.label(), b.label()
	b.place(top)
	b.arrives(word, need, o, look)
	in := &b.code[len(b.code)-1]
	switch {
	case b.sc.mayFail:
		in.peer = 1 + b.m.failure
	case b.sc.goesDown && b.thread == b.rank:
		in.peer = 1 + b.sc.down(b.rank)
	}
	read := b.read
	b.later = append(b.later, func() {
		now := b.read
		b.read = read
		b.place(look)
		b.load(word, acquire, atLeast, uint8(need), b.raise)
		b.jump(top)
		b.read = now
	})
}

func (b *builder) arrives(word uint8, need int, o order, to uint8) {
	b.emit(instr{op: load, word: word, order: o, test: arrives, value: uint8(need), to: to}, "poll until %s >= %d%s", b.m.words[word], need, o)
}

// readInput is one of the reads of this rank's contribution to a ticket. last: the input is not read again.
func (b *builder) readInput(ticket int, last bool) {
	if b.gate == nil || !b.gate.in {
		return
	}
	if last && b.off == InputTakenTooEarly {
		b.storeTaken(ticket - b.first)
	}
	b.load(b.input(ticket-b.first), relaxed, expect, data(b.call, false, ticket), 0)
}

// writeOutput writes the result of a ticket. last: this completes the output of the unit.
func (b *builder) writeOutput(ticket, share int, last bool) {
	if b.gate == nil || !b.gate.out {
		return
	}
	if last && b.off == OutputDoneTooEarly {
		b.storeDone(ticket - b.first)
	}
	b.store(b.output(ticket-b.first, share), data(b.call, true, ticket), relaxed)
	b.code[len(b.code)-1].depends = true
}

// leave hands the unit back to the device.
func (b *builder) leave(ticket int) {
	if b.gate == nil {
		return
	}
	b.read = ticket + 1
	if b.gate.out && b.off != OutputDoneTooEarly {
		b.storeDone(ticket - b.first)
	}
	if b.gate.in && b.off != InputTakenTooEarly {
		b.storeTaken(ticket - b.first)
	}
}

func (b *builder) storeDone(unit int) {
	o := release
	if b.off == OutputDoneRelaxed {
		o = relaxed
	}
	b.store(b.outputDone(), uint8(unit+1), o)
}

func (b *builder) storeTaken(unit int) {
	o := release
	if b.off == InputTakenRelaxed {
		o = relaxed
	}
	b.store(b.inputTaken(), uint8(unit+1), o)
}

// openGate ends the waits of the device for a run that ends with an error.
func (b *builder) openGate() {
	if b.gate == nil {
		return
	}
	if b.off == GateOpenedLate {
		b.store(b.sc.hasEnded(b.rank), 1, release)
	}
	for b.gateNumber = range b.lastGate + 1 {
		if b.off == GateStaysShut || b.off == QueuedGateStaysShut && b.gateNumber > 0 {
			continue
		}
		if b.off != InputStaysShut {
			b.store(b.inputTaken(), opened, release)
		}
		b.store(b.outputDone(), opened, release)
	}
	if b.off != GateOpenedLate {
		b.store(b.sc.hasEnded(b.rank), 1, release)
	}
}

// nextGate is before an operation with a gate of its own.
func nextGate(b *builder) {
	b.gateNumber++
	b.lastGate = b.gateNumber
}

// useAgain is between two operations that use one gate: its words are 0 again when the second is issued.
func useAgain(b *builder) {
	s := b.sc
	if b.off != GateUsedTooEarly {
		b.arrives(b.inputReady(), 1, acquire, b.raise)
		b.arrives(b.outputTaken(), 1, acquire, b.raise)
	}
	for _, w := range []uint8{b.inputReady(), b.outputTaken(), b.inputTaken(), b.outputDone()} {
		b.store(w, 0, relaxed)
	}
	b.store(s.issued(b.rank), 1, seqCst)
}

// whenIssued is the same place in the streams.
func whenIssued(b *builder) { b.load(b.sc.issued(b.rank), acquire, risen, 0, 0) }

// operateAgain is an operation of another group that uses a gate when its run has ended.
func operateAgain(b *builder) {
	whenRunEnded(b)
	operateWhenSettled(b)
}

// operateWhenSettled is an operation of another group that uses a gate as soon as its device is through with it.
func operateWhenSettled(b *builder) {
	b.gate = b.sc.gateOf(b.rank, b.off)
	useAgain(b)
	b.call, b.first = 2, 1
	for unit := range 2 {
		b.enter(unit, 2)
		b.readInput(b.first+unit, true)
		b.writeOutput(b.first+unit, 0, true)
		b.leave(b.first + unit)
	}
}

// takeUnitAndOpen is a run of one unit, whose gate is opened at its end.
func takeUnitAndOpen(b *builder) {
	b.call, b.first = 1, 0
	b.enter(0, 1)
	b.readInput(0, true)
	b.writeOutput(0, 0, true)
	b.read = 1
	if b.off == OutputOpenedFirst {
		b.store(b.outputDone(), opened, release)
	}
	b.store(b.inputTaken(), opened, release)
	if b.off != OutputOpenedFirst {
		b.store(b.outputDone(), opened, release)
	}
}

// takenWhenEnded is the caller of a device whose streams cannot wait: it queues the copies back when the run has ended.
func takenWhenEnded(b *builder) {
	whenRunEnded(b)
	b.read = 1
	b.store(b.outputTaken(), 1, release)
}

// moveAgain is what the stream of the output does for the operation of operateAgain.
func moveAgain(b *builder) {
	b.call = 2
	b.move(chunks(OneShot, 2), 1)
}

// runEnded is behind a run that has ended without an error.
func runEnded(b *builder) { b.store(b.sc.hasEnded(b.rank), 1, release) }

// takeGroupDown is what a user does who destroys the group.
func takeGroupDown(b *builder) {
	b.store(b.sc.down(b.rank), 1, seqCst)
	b.emit(instr{op: wakeBell, value: uint8(b.rank)}, "wake the bell of the driver")
}

// whenRunEnded makes a stream late: it does not come to the operation before its run has ended.
func whenRunEnded(b *builder) { b.load(b.sc.hasEnded(b.rank), acquire, risen, 0, 0) }

// publishUnit is a peer that publishes its contribution to the first unit and waits for nothing.
func publishUnit(b *builder) {
	b.call = 1
	b.fill(0, OneShot)
}

// ---- the device ----

// move writes the commands of a stream for an operation. When its gate was opened a stream goes on without order, and what
// it moves is undefined.
func (b *builder) move(c Call, first int) {
	for unit := range c.Chunks {
		if b.stream == copyIn {
			b.moveIn(unit, first+unit)
		} else {
			b.moveOut(c.Kind, unit, first+unit)
		}
	}
}

func (b *builder) moveIn(unit, ticket int) {
	if need := unit + 1 - b.gate.window; need > 0 && b.off != NoWaitForInputTaken {
		taken := b.label()
		b.arrives(b.inputTaken(), need, acquire, taken)
		b.place(taken)
	}
	o := release
	if b.off == DeviceWritesEarly {
		o = relaxed
	}
	b.store(b.input(unit), data(b.call, false, ticket), relaxed)
	b.store(b.inputReady(), uint8(unit+1), o)
}

func (b *builder) moveOut(kind CallKind, unit, ticket int) {
	undefined := b.label()
	b.arrives(b.outputDone(), unit+1, acquire, undefined)
	for share := range b.sharesOfOutput(kind) {
		b.load(b.output(unit, share), relaxed, expect, data(b.call, true, ticket), 0)
	}
	b.place(undefined)
	b.read = ticket + 1
	b.store(b.outputTaken(), uint8(unit+1), release)
}

// sharesOfOutput says in how many parts a run writes a unit of its output.
func (b *builder) sharesOfOutput(kind CallKind) int {
	if kind == TwoShot {
		return b.m.ranks
	}
	return 1
}

// ---- runs without slots ----

// takeUnits reads units and sends nothing: no release of another flag follows the last read.
func takeUnits(b *builder) {
	b.call = 1
	for unit := range 2 {
		b.enter(unit, 2)
		b.readInput(unit, true)
		b.leave(unit)
	}
}
