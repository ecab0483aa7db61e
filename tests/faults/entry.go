package main

// entry is how the survivors of a cell make the call that meets the fault. Where a rank is stopped, they must give up, and
// who gives up names the ranks that have not come: a survivor that the machine keeps from coming must not be among them. So
// only the last one has a short time, and it calls when the others have told that they are inside.
type entry struct {
	t       *trial
	timeout int64
	answers []<-chan result
	last    int  // -1: they call all at once
	told    bool // they tell when they are inside
}

// entry takes a timeout that is to pass where givesUp says so, one that is not elsewhere.
func (t *trial) entry(timeout int64) *entry {
	e := &entry{t: t, timeout: timeout, answers: make([]<-chan result, t.size), last: -1}
	if t.givesUp() {
		list := t.survivors()
		e.last, e.told = list[t.random.IntN(len(list))], true
	}
	return e
}

// givesUp says whether the survivors end by a timeout: of a rank that has left first they know that.
func (t *trial) givesUp() bool { return t.fault == "stop" && t.moment != "left" }

// all returns when all have been told to call, and, where they tell it, are inside.
func (e *entry) all() error {
	if err := e.first(); err != nil {
		return err
	}
	return e.rest()
}

// first has all call but the last one.
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

// rest waits until those are inside, and has the last one follow.
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
