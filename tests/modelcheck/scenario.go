package modelcheck

import (
	"fmt"
	"slices"
)

// CallKind is the kind of a call.
type CallKind uint8

// The kinds of calls. Collectives are made of the stages of slot plans, with their lags.
const (
	OneShot   CallKind = iota // all_reduce: publish, reduce all
	TwoShot                   // all_reduce: publish, reduce the own share, collect
	Broadcast                 // the root publishes, the others read
	Barrier                   // publish nothing, await all
	Declare                   // the thread has found a failure of its own
	Goodbye                   // the rank leaves the group
	Step                      // Do

	// Made of messages, see channels.go.
	RingGather // P-1 times: send to the next rank, receive from the one before
	Chain      // from the root on each rank receives from the one before, then sends to the next
)

func (k CallKind) ofMessages() bool { return k == RingGather || k == Chain }

// Call is one step of a thread's program.
type Call struct {
	Kind   CallKind
	Chunks int
	Root   int
	Do     func(*builder)
}

// Other is a thread beside the one that drives the host lane of a rank: it drives the device lane, is a stream of a device,
// or does something else.
type Other struct {
	Rank   int
	Calls  []Call
	Lane   int
	Stream stream
}

// Scenario is a few calls by a few ranks.
type Scenario struct {
	Name  string
	Ranks int
	Slots int
	// Calls of every rank, or the same for all when there is one list.
	Calls  [][]Call
	Others []Other
	// Want says which ends are right, by thread. Empty: all finish.
	Want []outcomes
	// Window is for how many units the buffers at gates have room.
	Window int
	// Big ones, of about half a million states and more, are left out with -short and where the race detector makes
	// everything ten times as slow.
	Big bool

	// What is left out of the model where a scenario does not need it. hashes: the hash of calls has a word of its own
	// instead of travelling in the payload's. headers: `consumed` in the slots.
	// makesChannels: channels are not there from the beginning.
	// goesDown: a rank is taken down without a failure.
	hashes, headers, mayFail, goodbyes, records, makesChannels, goesDown bool
	// parts are programs that are no collectives, by thread.
	parts []func(*builder)
}

// plan is a scenario with the words that it uses. A word gets its place when it first occurs.
type plan struct {
	*Scenario
	m     *machine
	lane  int // of the thread whose program is written
	index map[string]uint8
	calls map[string]uint8 // history of calls to running hash
}

func (p *plan) word(format string, args ...any) uint8 {
	name := fmt.Sprintf(format, args...)
	w, ok := p.index[name]
	if !ok {
		w = uint8(len(p.m.words))
		if w >= maxWords {
			panic(fmt.Sprintf("scenario %q: more than %d words", p.Name, maxWords))
		}
		p.index[name] = w
		p.m.words = append(p.m.words, name)
	}
	return w
}

func (p *plan) slot(name string, rank, ticket int) uint8 {
	return p.laneWord("%s[rank %d, slot %d]", name, rank, ticket%int(p.m.slots))
}
func (p *plan) filled(rank, ticket int) uint8  { return p.slot("filled", rank, ticket) }
func (p *plan) reduced(rank, ticket int) uint8 { return p.slot("reduced", rank, ticket) }
func (p *plan) hash(rank, ticket int) uint8    { return p.slot("hash", rank, ticket) }
func (p *plan) header(rank, ticket int) uint8  { return p.slot("header.consumed", rank, ticket) }
func (p *plan) consumed(rank int) uint8        { return p.laneWord("consumed[rank %d]", rank) }
func (p *plan) waitsFor(rank int) uint8        { return p.laneWord("waits_for[rank %d]", rank) }
func (p *plan) left(rank int) uint8            { return p.word("left[rank %d]", rank) }
func (p *plan) record(rank, number int) uint8 {
	return p.laneWord("record[rank %d, call %d]", rank, number)
}

// turn is the word by which threads of a process take turns in declaring. Lanes have one between them.
func (b *builder) turn() uint8 {
	if b.off == DeclaresInEachLane {
		return b.sc.laneWord("declaring[rank %d]", b.rank)
	}
	return b.sc.word("declaring[rank %d]", b.rank)
}

func (p *plan) data(rank, ticket, share int) uint8 {
	w := p.slot(fmt.Sprintf("data[share %d]", share), rank, ticket)
	p.m.isData[w] = uint8(1 + p.lane)
	return w
}

// turns reports whether more than one thread of the rank may declare a failure.
func (p *plan) turns(rank int) bool {
	for _, o := range p.Others {
		if o.Rank == rank && o.Stream == noStream {
			return true
		}
	}
	return false
}

func (p *plan) runningHash(history string) uint8 {
	h, ok := p.calls[history]
	if !ok {
		h = uint8(len(p.calls) + 1)
		p.calls[history] = h
	}
	return h
}

// machine builds the programs of all threads.
func (sc Scenario) machine(off Switch) *machine {
	m := &machine{ranks: sc.Ranks, slots: uint8(sc.Slots), want: sc.Want,
		noValueCheck: off == NoBellCheck, wakeWithoutAdd: off == WakeWithoutAdd, wakeWithoutFutex: off == WakeWithoutFutex}
	if off == SlotsLikeLag {
		m.slots--
	}
	p := &plan{Scenario: &sc, m: m, index: map[string]uint8{}, calls: map[string]uint8{}}
	if sc.mayFail {
		m.failure = p.word("failure")
		for r := range sc.Ranks {
			m.records[r] = p.word("failure_record[rank %d], first half", r)
			p.word("failure_record[rank %d], second half", r)
		}
	}
	for q := range sc.Ranks {
		m.driver[hostLane][q] = uint8(q)
	}
	for i, o := range sc.Others {
		if o.Lane == deviceLane {
			m.driver[deviceLane][o.Rank] = uint8(sc.Ranks + i)
		}
	}
	for ti := range sc.Ranks + len(sc.Others) {
		b := &builder{m: m, sc: p, off: off, rank: ti, thread: ti}
		var calls []Call
		switch {
		case ti >= sc.Ranks:
			o := sc.Others[ti-sc.Ranks]
			b.rank, calls, b.lane, b.stream = o.Rank, o.Calls, o.Lane, o.Stream
		case len(sc.Calls) == 1:
			calls = sc.Calls[0]
		case len(sc.Calls) > 1:
			calls = sc.Calls[ti]
		}
		p.lane = b.lane
		if ti < sc.Ranks || b.stream != noStream {
			b.gate = p.gateOf(b.rank, off)
		}
		b.failing()
		if sc.parts != nil {
			b.call = 1
			sc.parts[ti](b)
		}
		m.threads = append(m.threads, b.program(calls))
	}
	if len(m.want) == 0 {
		for range m.threads {
			m.want = append(m.want, finished)
		}
	}
	return m
}

func (b *builder) program(calls []Call) program {
	ticket, history := 0, ""
	var late []func()
	for i, c := range calls {
		if c.Kind == Step {
			c.Do(b)
			continue
		}
		if c.Kind == Declare {
			b.read = noReads
			b.declare(b.raise)
			b.jump(b.raise)
			break
		}
		if c.Kind == Goodbye {
			if b.off != LeftBeforeLast {
				b.goodbye()
			} else {
				b.wakeAll(false)
			}
			break
		}
		if b.off == LeftBeforeLast && i+1 < len(calls) && calls[i+1].Kind == Goodbye {
			b.storeLeft()
		}
		history += fmt.Sprint(c)
		b.call = b.sc.runningHash(history)
		b.number = i + 1
		if b.sc.records {
			b.store(b.sc.record(b.rank, b.number), b.call, release)
		}
		if c.Kind.ofMessages() {
			b.byMessages(c)
			continue
		}
		switch {
		case b.stream == copyIn && b.off == StreamOutOfOrder:
			call, gate, first := b.call, b.gateNumber, ticket
			late = append(late, func() {
				b.call, b.gateNumber = call, gate
				b.move(c, first)
			})
		case b.stream != noStream:
			b.move(c, ticket)
		default:
			b.collective(c, ticket)
		}
		ticket += c.Chunks
	}
	for _, move := range slices.Backward(late) {
		move()
	}
	return b.finish(finished)
}

// stage is one stage of a plan: its kind, and how many chunks it lags behind.
type stage struct {
	lag int
	do  func(ticket int)
}

// collective writes the steps of scr_run_advance.
func (b *builder) collective(c Call, first int) {
	publish := stage{0, func(t int) { b.fill(t, c.Kind) }}
	var stages []stage
	switch c.Kind {
	case OneShot:
		stages = []stage{publish, {1, func(t int) { b.reduce(t, false) }}}
	case TwoShot:
		stages = []stage{publish, {1, func(t int) { b.reduce(t, true) }}, {2, b.collect}}
	case Broadcast:
		stages = []stage{publish}
		if b.rank != c.Root {
			stages = []stage{{0, func(t int) { b.readRoot(t, c.Root) }}}
		}
	case Barrier:
		stages = []stage{publish, {0, func(t int) {
			for _, p := range b.peers() {
				b.awaitFilled(p, t)
			}
		}}}
	}
	lag := stages[len(stages)-1].lag
	b.first = first
	for head := range c.Chunks + lag {
		if head < c.Chunks {
			b.enter(head, c.Chunks)
		}
		for _, s := range stages {
			if k := head - s.lag; k >= 0 && k < c.Chunks {
				s.do(first + k)
			}
		}
		if head >= lag {
			b.leave(first + head - lag)
			b.consume(first + head - lag)
		}
	}
}

func (b *builder) readRoot(ticket, root int) {
	b.awaitFilled(root, ticket)
	if b.off == ConsumedTooEarly {
		b.storeConsumed(ticket)
	}
	b.readData(root, ticket, 0, false)
	b.writeOutput(ticket, 0, true)
}
