package modelcheck

import "fmt"

// builder writes the program of one thread. Targets of jumps are labels until [builder.done].
type builder struct {
	m      *machine
	sc     *plan
	off    Switch
	rank   int
	thread int

	code                 []instr
	labels               []int    // pc, by label
	later                []func() // blocks that are placed behind the rest
	read                 int      // tickets that the thread reads nothing for any more
	armed                bool
	sent                 [maxRanks]int // messages, by peer
	got                  [maxRanks]int
	call                 uint8 // running hash
	lane                 int
	number               int // of the call, from 1
	first                int // ticket of the call
	gate                 *gate
	gateNumber, lastGate int
	stream               stream
	raise                uint8 // label: report the first cause
	accuse               uint8 // label: declare what was found
}

const nowhere = -1

func (b *builder) label() uint8 {
	b.labels = append(b.labels, nowhere)
	return uint8(len(b.labels) - 1)
}

func (b *builder) place(l uint8) { b.labels[l] = len(b.code) }

func (b *builder) emit(in instr, format string, args ...any) {
	in.text = fmt.Sprintf(format, args...)
	in.read = uint8(b.read)
	in.armed = b.armed
	b.code = append(b.code, in)
}

func (b *builder) load(word uint8, o order, t test, value uint8, to uint8) {
	what := [...]string{"wait for %s >= %d", "look whether %s < %d", "look whether %s = %d", "look whether %s is 0 or %d", "compare %s with hash %d",
		"read %s", "read %s", "learn from %s", "read %s", "wait for %s",
		masked: "look at %s", queued: "look at %s", risen: "wait for %s"}[t]
	args := []any{b.m.words[word], value}
	if t >= expect {
		args = args[:1]
	}
	b.emit(instr{op: load, word: word, order: o, test: t, value: value, to: to}, "%s%s", fmt.Sprintf(what, args...), o)
}

func (b *builder) store(word, value uint8, o order) {
	b.emit(instr{op: store, word: word, value: value, order: o}, "store %s = %s%s", b.m.words[word], b.m.show(word, value), o)
}

func (b *builder) jump(to uint8) { b.emit(instr{op: jump, to: to}, "go on") }

// finish ends the program, places what was put off and resolves labels.
func (b *builder) finish(how outcomes) program {
	b.emit(instr{op: end, value: uint8(how)}, "end")
	for len(b.later) > 0 {
		block := b.later[0]
		b.later = b.later[1:]
		block()
	}
	if len(b.code) > 255 || len(b.labels) > 255 {
		panic(fmt.Sprintf("scenario %q: %d instructions and %d labels on rank %d do not fit a byte", b.sc.Name, len(b.code), len(b.labels), b.rank))
	}
	for i := range b.code {
		in := &b.code[i]
		switch in.op {
		case load, claim, change, skipIfSeen, jump:
			if in.op == load && !in.test.jumps() {
				continue
			}
			in.to = uint8(b.labels[in.to])
		}
	}
	for i := range b.code {
		b.reorderings(i)
	}
	return program{b.rank, b.name(), b.code}
}

func (t test) jumps() bool {
	switch t {
	case atLeast, below, equals, zeroOr, sameCall, sameData, masked, queued, arrives:
		return true
	}
	return false
}

// reorderings finds out what may overtake a load that orders nothing. Only the way straight on counts: it is the one
// that a processor would speculate on.
func (b *builder) reorderings(i int) {
	in := &b.code[i]
	if in.op != load || in.order != relaxed {
		return
	}
	late := in.test == expect || in.test == sameData
	for j := i + 1; j < len(b.code); j++ {
		next := &b.code[j]
		switch next.op {
		case load:
			if next.test == arrives {
				return
			}
			if next.word == in.word {
				return // one word is always read in order
			}
			in.window = append(in.window, uint8(j))
			if next.order != relaxed {
				return
			}
		case store:
			if next.order != relaxed || next.depends {
				return
			}
			in.defers = in.defers || late
		default:
			return
		}
	}
}

// ---- publishing ----

// publish stores a flag and wakes who waits for this rank.
func (b *builder) publish(flag, value uint8, o order, wake bool) {
	b.store(flag, value, o)
	if !wake {
		return
	}
	o = seqCst
	if b.off == WaitsForNotSeqCst {
		o = acquire
	}
	for q := range b.m.ranks {
		if q == b.rank {
			continue
		}
		over := b.label()
		b.load(b.sc.waitsFor(q), o, equals, uint8(1+b.rank), over)
		b.wakeRank(q)
		b.place(over)
	}
}

// wakeRank wakes the bell of a rank in the lane of this thread.
func (b *builder) wakeRank(q int) {
	b.emit(instr{op: wakeBell, value: b.m.driver[b.lane][q]}, "wake the bell of rank %d", q)
}

func (b *builder) strength(relaxedBy, noFence Switch) order {
	switch b.off {
	case relaxedBy:
		return relaxed
	case noFence:
		return release
	}
	return seqCst
}

// fill publishes this rank's contribution to a ticket. The words of the slot are the shares that others read.
func (b *builder) fill(ticket int, kind CallKind) {
	b.awaitConsumed(ticket)
	s := b.sc
	b.readInput(ticket, kind == Broadcast)
	switch kind {
	case TwoShot:
		for share := range b.m.ranks {
			if share != b.rank {
				b.contribute(ticket, share)
			}
		}
	case OneShot, Broadcast:
		b.contribute(ticket, 0)
	}
	if s.hashes {
		b.store(s.hash(b.rank, ticket), b.call, relaxed)
	}
	if s.headers {
		consumed := b.read
		if b.off == HeaderTooNew {
			consumed = ticket + 1
		}
		b.store(s.header(b.rank, ticket), uint8(consumed), relaxed)
	}
	b.publish(s.filled(b.rank, ticket), uint8(ticket+1), b.strength(FilledRelaxed, FilledNoFence), b.off != FilledWakesNobody)
}

func (b *builder) contribute(ticket, share int) {
	b.store(b.sc.data(b.rank, ticket, share), data(b.call, false, ticket), relaxed)
	b.code[len(b.code)-1].depends = b.gate != nil
}

func (b *builder) consume(ticket int) {
	b.read = ticket + 1
	if b.off == ConsumedTooEarly {
		return // was stored before the reads
	}
	b.storeConsumed(ticket)
}

func (b *builder) storeConsumed(ticket int) {
	b.publish(b.sc.consumed(b.rank), uint8(ticket+1), b.strength(ConsumedRelaxed, ConsumedNoFence), b.off != ConsumedWakesNobody)
}

// ---- reading ----

// peers are the other ranks in the order in which this one looks at them.
func (b *builder) peers() []int {
	var list []int
	for i := 1; i < b.m.ranks; i++ {
		list = append(list, (b.rank+i)%b.m.ranks)
	}
	return list
}

func (b *builder) awaitConsumed(ticket int) {
	if ticket < int(b.m.slots) || b.off == NoWaitForConsumed {
		return
	}
	need := uint8(ticket - int(b.m.slots) + 1)
	for _, q := range b.peers() {
		over := b.label()
		if b.sc.headers {
			b.emit(instr{op: skipIfSeen, peer: uint8(q), value: need, to: over}, "rank %d is known to have consumed %d", q, need)
		}
		b.await(b.sc.consumed(q), need, q, acquire)
		b.place(over)
	}
}

func (b *builder) awaitFilled(p, ticket int) {
	o := acquire
	if b.off == FilledNotAcquired {
		o = relaxed
	}
	if b.off != NoWaitForFilled {
		b.await(b.sc.filled(p, ticket), uint8(ticket+1), p, o)
	}
	if b.sc.hashes && b.off != HashNotCompared {
		b.load(b.sc.hash(p, ticket), relaxed, sameCall, b.call, b.accuse)
	}
	if b.sc.headers {
		b.load(b.sc.header(p, ticket), relaxed, lift, 0, 0)
		b.code[len(b.code)-1].peer = uint8(p)
	}
}

func (b *builder) readData(p, ticket, share int, reduced bool) {
	t := expect
	if !b.sc.hashes && b.sc.mayFail && b.off != HashNotCompared {
		t = sameData
	}
	b.load(b.sc.data(p, ticket, share), relaxed, t, data(b.call, reduced, ticket), b.accuse)
}

func (b *builder) reduce(ticket int, twoShot bool) {
	for _, p := range b.peers() {
		b.awaitFilled(p, ticket)
	}
	share := 0
	if twoShot {
		share = b.rank
	} else if b.off == ConsumedTooEarly {
		b.storeConsumed(ticket)
	}
	for _, p := range b.peers() {
		b.readData(p, ticket, share, false)
	}
	b.readInput(ticket, true)
	b.writeOutput(ticket, share, !twoShot)
	if twoShot {
		for _, p := range b.peers() {
			b.store(b.sc.data(p, ticket, share), data(b.call, true, ticket), relaxed)
			b.code[len(b.code)-1].depends = true
		}
		b.publish(b.sc.reduced(b.rank, ticket), uint8(ticket+1), b.strength(ReducedRelaxed, ReducedNoFence), b.off != ReducedWakesNobody)
	}
}

func (b *builder) collect(ticket int) {
	o := acquire
	if b.off == ReducedNotAcquired {
		o = relaxed
	}
	if b.off != NoWaitForReduced {
		for _, p := range b.peers() {
			b.await(b.sc.reduced(p, ticket), uint8(ticket+1), p, o)
		}
	}
	if b.off == ConsumedTooEarly {
		b.storeConsumed(ticket)
	}
	for i, p := range b.peers() {
		b.readData(b.rank, ticket, p, true)
		b.writeOutput(ticket, p, i == len(b.peers())-1)
	}
}
