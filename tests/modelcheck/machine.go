package modelcheck

import "fmt"

type order uint8

const (
	relaxed order = iota // also: not atomic
	acquire
	release
	seqCst
)

func (o order) String() string { return [...]string{"", ", acquire", ", release", ", seq_cst"}[o] }

type opcode uint8

const (
	load       opcode = iota // value of word, then test
	store                    // value to word
	wakeBell                 // add to the bell of rank value and wake who sleeps on it
	readBell                 // from here on the own bell's change counts
	futexWait                // unless the bell has changed
	claim                    // compare-and-swap of word from 0 to value; to when it was taken
	loadRecord               // word value of the record of the winner
	change                   // add value to word, at once, if its bits in the mask peer are want; else to
	fence                    // order says which
	skipIfSeen               // to, when peer has consumed value
	checkNoted               // nothing that was noted differs
	forget                   // what was noted
	jump
	end // value: an outcome
)

// test says what a load does with its value.
type test uint8

const (
	atLeast  test = iota // value: on, else to
	below                // value: on, else to
	equals               // value: on, else to
	zeroOr               // 0 or value: on, else to
	sameCall             // value is the hash: on; another one: to; none: wrong data
	expect               // value: on, anything else is wrong data
	sameData             // as expect; another call's data: to
	lift                 // on, raising what is known of peer
	note                 // on, remembering when it is not value
	winner               // on when there is one, which is kept; not satisfied before
	masked               // its bits in the mask peer are value: on, else to
	queued               // as a group word it has a run in the queue: on, else to
	risen                // on when it is not 0; not satisfied before
	arrives              // at least value: on; not satisfied before, unless word peer - 1 is not 0; then, or when the gate was opened: to
)

// instr is one access to shared memory, or a local step, which is carried out together with the access before it.
type instr struct {
	op    opcode
	test  test
	order order
	word  uint8
	value uint8
	peer  uint8
	want  uint8
	to    uint8
	// depends: the store depends on the loads before it, so it cannot overtake them.
	depends bool
	text    string

	read   uint8 // collectives' tickets that the thread will read nothing for any more
	armed  bool  // between reading the bell and sleeping on it
	window []uint8
	defers bool // the load may be satisfied after later stores
}

type program struct {
	rank int
	name string
	code []instr
}

type machine struct {
	ranks  int
	slots  uint8
	words  []string
	isData [maxWords]uint8 // of the payload of a slot: 1 + its lane
	// payload of a place of a channel
	isMessage [maxWords]bool
	isUnit    [maxWords]bool  // of a buffer of a gate
	takenBy   [maxWords]uint8 // of a unit: 1 + the thread that reads it
	completes [maxWords]uint8 // of an operation's buffer: 1 + the word that says that it is complete
	failure   uint8
	records   [maxRanks]uint8        // first word of each rank's failure record
	driver    [lanes][maxRanks]uint8 // the thread that drives a lane of a rank
	threads   []program
	want      []outcomes
	// protections of the futex itself
	noValueCheck, wakeWithoutAdd, wakeWithoutFutex bool
}

type outcomes uint8

const (
	finished outcomes = 1 << iota
	failed
	// Of two operations in the queue, see drain.go.
	firstOnly  // the first has finished, the second has failed
	outOfOrder // the first has failed, the second has finished
)

// Kind of what was found.
type Kind string

// The kinds.
const (
	Deadlock    Kind = "deadlock"
	WrongData   Kind = "wrong data read"
	Overwritten Kind = "slot overwritten"
	BadRecord   Kind = "bad record"
	BadOutcome  Kind = "wrong outcome"
	LateWrite   Kind = "buffer written after completion"
)

type violation struct {
	kind Kind
	text string
}

type stepKind uint8

const (
	execute stepKind = iota
	drain            // entry n of the buffer
	ahead            // load n of the window
	behind           // the load is put off
	satisfy          // the load that was put off
	spurious
)

type step struct {
	thread uint8
	kind   stepKind
	n      uint8
}

// steps appends what may happen next. Waking up for no reason comes last and is counted separately.
func (m *machine) steps(s *state, out []step) (list []step, real int) {
	for ti := range m.threads {
		t := &s.thread[ti]
		for i := range int(t.n) {
			if t.canDrain(i) {
				out = append(out, step{uint8(ti), drain, uint8(i)})
			}
		}
		if t.late != 0 {
			out = append(out, step{uint8(ti), satisfy, 0})
		}
		if t.asleep != 0 {
			continue
		}
		in := &m.threads[ti].code[t.pc]
		if m.ready(s, ti, in) {
			out = append(out, step{uint8(ti), execute, 0})
		}
		if in.defers && t.late == 0 {
			out = append(out, step{uint8(ti), behind, 0})
		}
		if t.early[maxEarly-1].pc == 0 {
			for _, pc := range in.window {
				if t.early[0].pc != pc {
					out = append(out, step{uint8(ti), ahead, pc})
				}
			}
		}
	}
	real = len(out)
	for ti := range m.threads {
		if s.thread[ti].asleep != 0 {
			out = append(out, step{uint8(ti), spurious, 0})
		}
	}
	return out, real
}

// ready says whether the instruction may be carried out now.
func (m *machine) ready(s *state, ti int, in *instr) bool {
	t := &s.thread[ti]
	switch in.op {
	case store:
		return int(t.n) < maxBuffered && (t.late == 0 || in.order == relaxed && !in.depends)
	case wakeBell:
		return t.n == 0 && t.late == 0
	case claim:
		return in.order == relaxed || t.n == 0 && t.late == 0
	case change:
		return t.n == 0 && t.late == 0
	case fence:
		return int(t.n) < maxBuffered && t.late == 0
	case load:
		if in.test == arrives {
			return s.read(ti, in.word) >= in.value || in.peer != 0 && s.read(ti, in.peer-1) != 0
		}
		return (in.test != winner && in.test != risen || s.read(ti, in.word) != 0) && (in.order != seqCst || !t.awaitsSeqCst())
	case end:
		return false
	}
	return true
}

// local says that the instruction changes nothing that another thread can see or that could keep it from happening. It
// commutes with all steps of others, and a thread cannot go round in such instructions only, so carrying it out at once
// leaves no behaviour out.
func (in *instr) local() bool {
	switch in.op {
	case store, fence, skipIfSeen, checkNoted, forget, jump:
		return true
	}
	return false
}

func (m *machine) start(log func(string)) (state, *violation) {
	var s state
	for ti := range m.threads {
		if f := m.settle(&s, ti, log); f != nil {
			return s, f
		}
	}
	return s, nil
}

// settle carries out local instructions up to the next access.
func (m *machine) settle(s *state, ti int, log func(string)) *violation {
	t := &s.thread[ti]
	for {
		in := &m.threads[ti].code[t.pc]
		if !in.armed {
			t.rung = 0
		}
		if !in.local() || !m.ready(s, ti, in) {
			return nil
		}
		if f := m.instruction(s, ti, log); f != nil {
			return f
		}
	}
}

// take carries a step out. log, if not nil, gets lines for humans.
func (m *machine) take(s *state, st step, log func(string)) *violation {
	ti := int(st.thread)
	t := &s.thread[ti]
	p := &m.threads[ti]
	say := func(format string, args ...any) {
		if log != nil {
			log(fmt.Sprintf("%s: ", m.who(ti)) + fmt.Sprintf(format, args...))
		}
	}
	switch st.kind {
	case drain:
		e := t.remove(int(st.n))
		word := e.word & wordMask
		say("    (memory sees %s = %s)", m.words[word], m.show(word, e.value))
		if f := m.commit(s, p.rank, word, e.value); f != nil {
			return f
		}
	case ahead:
		in := &p.code[st.n]
		at := 0
		if t.early[0].pc != 0 {
			at = 1
		}
		t.early[at] = early{st.n, s.read(ti, in.word)}
		say("    (reads %s ahead of time: %s)", m.words[in.word], m.show(in.word, t.early[at].value))
	case behind:
		say("    (puts off: %s)", p.code[t.pc].text)
		t.late = t.pc + 1
		t.pc++
	case satisfy:
		in := &p.code[t.late-1]
		v := s.read(ti, in.word)
		say("    (only now: %s: reads %s)", in.text, m.show(in.word, v))
		t.late = 0
		if v != in.value {
			return m.wrongData(ti, in, v)
		}
	case spurious:
		say("futex returns for no reason")
		t.asleep = 0
		t.pc++
	case execute:
		if f := m.instruction(s, ti, log); f != nil {
			return f
		}
	}
	return m.settle(s, ti, log)
}

func (m *machine) wrongData(ti int, in *instr, v uint8) *violation {
	return &violation{WrongData, fmt.Sprintf("%s reads %s and finds %s where %s must be",
		m.who(ti), m.words[in.word], m.show(in.word, v), m.show(in.word, in.value))}
}

// commit is the moment from which all see a store.
func (m *machine) commit(s *state, rank int, word, value uint8) *violation {
	before := s.mem[word]
	s.mem[word] = value
	if by := m.takenBy[word]; by != 0 && before != 0 {
		if reader := &m.threads[by-1].code[s.thread[by-1].pc]; int(reader.read) <= ticketOf(before) {
			return &violation{Overwritten, fmt.Sprintf("%s is written for unit %d while %s may still read unit %d there",
				m.words[word], ticketOf(value), m.who(int(by-1)), ticketOf(before))}
		}
	}
	if done := m.completes[word]; done != 0 && s.mem[done-1] != 0 {
		return &violation{LateWrite, fmt.Sprintf("%s is written although %s = %d", m.words[word], m.words[done-1], s.mem[done-1])}
	}
	if m.isData[word] == 0 {
		return nil
	}
	ticket := ticketOf(value)
	for q := range m.ranks {
		ti := m.driver[m.isData[word]-1][q]
		reader := &m.threads[ti].code[s.thread[ti].pc]
		if q != rank && int(reader.read) < ticket-int(m.slots)+1 {
			return &violation{Overwritten, fmt.Sprintf("%s is written for ticket %d while rank %d may still read it for ticket %d",
				m.words[word], ticket, q, ticket-int(m.slots))}
		}
	}
	return nil
}

func (m *machine) who(ti int) string {
	if name := m.threads[ti].name; name != "" {
		return fmt.Sprintf("rank %d, %s", m.threads[ti].rank, name)
	}
	if ti >= m.ranks {
		return fmt.Sprintf("rank %d, other thread", m.threads[ti].rank)
	}
	return fmt.Sprintf("rank %d", m.threads[ti].rank)
}

func (m *machine) show(word, value uint8) string {
	switch {
	case m.isData[word] != 0:
		return showData(value)
	case m.isUnit[word] && value != 0:
		return fmt.Sprintf("unit %d of call %d", ticketOf(value), callOf(value))
	case m.isMessage[word] && value != 0:
		return fmt.Sprintf("message %d, of call %d", ticketOf(value), callOf(value))
	}
	return fmt.Sprint(value)
}
