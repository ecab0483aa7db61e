package main

// entry is how the survivors of a cell make the call that meets the fault. Where a rank is stopped, they must time
// out, and the error names the ranks that have not come. A survivor that is late on a busy machine must not be one of
// them. So only the last survivor has a short timeout, and it calls after the others have reported that they are inside.
type entry struct {
	t       *trial
	timeout int64
	answers []<-chan result
	last    int  // -1: all call at once
	told    bool // they report when they are inside
}

// entry sets a timeout that the call reaches where givesUp is true, and one that it does not reach elsewhere.
func (t *trial) entry(timeout int64) *entry {
	e := &entry{t: t, timeout: timeout, answers: make([]<-chan result, t.size), last: -1}
	if t.givesUp() {
		list := t.survivors()
		e.last, e.told = list[t.random.IntN(len(list))], true
	}
	return e
}

// givesUp reports whether the survivors end by a timeout. They do not if they know that the stopped rank has left before.
func (t *trial) givesUp() bool { return t.fault == "stop" && t.moment != "left" }

// all returns when all have the order to call and, if told is set, have reported that they are inside.
func (e *entry) all() error {
	if err := e.first(); err != nil {
		return err
	}
	return e.rest()
}

// first gives the order to call to all survivors but the last one.
func (e *entry) first() error {
	for _, rank := range e.t.survivors() {
		if rank == e.last {
			continue
		}
		timeout := e.timeout
		if e.last >= 0 {
			timeout = longTimeout
		}
		if err := e.call(rank, timeout); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until those are inside, and then gives the order to the last one.
func (e *entry) rest() error {
	for _, rank := range e.t.survivors() {
		if rank == e.last || !e.told {
			continue
		}
		if _, err := e.t.ranks[rank].hit(); err != nil {
			return err
		}
	}
	if e.last < 0 {
		return nil
	}
	if err := e.call(e.last, e.timeout); err != nil {
		return err
	}
	_, err := e.t.ranks[e.last].hit()
	return err
}

func (e *entry) call(rank int, timeout int64) error {
	if e.told && !e.t.arm(rank, "started", 1, "tell") {
		return errNotArmed
	}
	e.answers[rank] = e.t.call(rank, timeout, loopFor, "")
	return nil
}
