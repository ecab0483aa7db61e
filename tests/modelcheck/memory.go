package modelcheck

const (
	maxRanks    = 3
	maxThreads  = 4
	maxWords    = 60
	maxBuffered = 8
	maxEarly    = 2
)

// state is all that distinguishes one moment from another. It consists of bytes only, so that it has no padding and is
// hashed as one block; what has no meaning is kept at zero.
type state struct {
	mem    [maxWords]uint8
	cause  uint8 // what the first rank that reported a failure reported
	thread [maxThreads]thread
}

type thread struct {
	pc     uint8
	asleep uint8
	// rung says that the bell has changed since it was read. A futex compares for equality only, so this is all of the
	// bell that matters (the count does not come round in the time between).
	rung   uint8
	late   uint8 // 1 + pc of a load that is still to be satisfied
	winner uint8 // content of the failure word
	noted  uint8
	seen   [maxRanks]uint8 // lower bounds of what the peers have consumed
	early  [maxEarly]early // loads that were satisfied ahead of time
	n      uint8
	buffer [maxBuffered]entry
}

type early struct{ pc, value uint8 } // pc 0: free

// entry is a store in a store buffer.
type entry struct{ word, value uint8 }

const (
	releaseBit = 0x80 // of entry.word: not before the entries in front
	seqCstBit  = 0x40 // of entry.word, with releaseBit: nor may a sequentially consistent load go ahead of it
	wordMask   = 0x3f
	fenceEntry = wordMask // entry.word: nothing behind it before anything in front of it
)

func (t *thread) push(word, value uint8) {
	t.buffer[t.n] = entry{word, value}
	t.n++
}

func (t *thread) remove(i int) entry {
	e := t.buffer[i]
	copy(t.buffer[i:t.n], t.buffer[i+1:t.n])
	t.n--
	t.buffer[t.n] = entry{}
	for t.n > 0 && t.buffer[0].word == fenceEntry {
		copy(t.buffer[:t.n], t.buffer[1:t.n])
		t.n--
		t.buffer[t.n] = entry{}
	}
	return e
}

// canDrain reports whether entry i may be the next of the buffer that memory sees.
func (t *thread) canDrain(i int) bool {
	e := t.buffer[i]
	if e.word == fenceEntry || e.word&releaseBit != 0 && i > 0 {
		return false
	}
	for _, before := range t.buffer[:i] {
		if before.word == fenceEntry || before.word&wordMask == e.word&wordMask {
			return false
		}
	}
	return true
}

// read returns the value that a load of the thread sees now: that of its own newest store, else that of memory.
func (s *state) read(ti int, word uint8) uint8 {
	t := &s.thread[ti]
	for i := int(t.n) - 1; i >= 0; i-- {
		if t.buffer[i].word&wordMask == word {
			return t.buffer[i].value
		}
	}
	return s.mem[word]
}

// awaitsSeqCst reports whether a sequentially consistent store is still in the buffer.
func (t *thread) awaitsSeqCst() bool {
	for _, e := range t.buffer[:t.n] {
		if e.word&seqCstBit != 0 {
			return true
		}
	}
	return false
}

// takeEarly returns the value of the load at pc if it was satisfied ahead of time.
func (t *thread) takeEarly(pc uint8) (uint8, bool) {
	for i, e := range t.early {
		if e.pc == pc && pc != 0 {
			copy(t.early[i:], t.early[i+1:])
			t.early[maxEarly-1] = early{}
			return e.value, true
		}
	}
	return 0, false
}
