package vendor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
)

// This file makes communicators. The ranks make one together when each of them issues its first collective on a device. First
// they tell each other their devices, then rank 0 gives its unique id to all. While they join, they tell each other how far they
// are, so that none waits long for a rank that has failed. So all ranks use the library, or none does. Before a rank tells an error
// of the library, it waits for a death that explains the error: the dead rank may have told how far it is, and is not missed then.
//
// A goroutine does so, and the caller handles signals meanwhile. A caller who is interrupted leaves the goroutine alone: peers need
// its part, and the next call on that device finds the communicator.

const (
	joinBound = 5 * time.Minute        // of the ranks' join, if the group's timeout is not shorter
	joinSlice = 100 * time.Millisecond // a rank tells the others how far it is when it has joined or failed, or after this time
)

// Seat is a rank's part in a communicator.
type Seat struct {
	Device  string   `json:"device"`            // its identity
	Place   string   `json:"place"`             // its name for texts
	Process string   `json:"process,omitempty"` // which no other process of the host has
	Reaches []string `json:"reaches,omitempty"` // devices whose memory the rank's device can use

	// Scales tells that the framework of the rank's caller multiplies and divides elements: scaling.go.
	Scales bool `json:"scales,omitempty"`

	// Where is the place of the device among those of its host, nil if it is not known.
	Where *topo.Place `json:"where,omitempty"`

	Why string `json:"why"` // why the rank cannot use the method; "" if it can
}

// report is how far a rank has come in a join.
type report struct {
	Joined bool   `json:"joined"`
	Why    string `json:"why"` // why the rank cannot join; "" if it can
}

// making is a communicator that is being made.
type making struct {
	done chan struct{} // closed when what follows is set
	c    *communicator
	err  error
}

// communicatorFor returns the communicator of the operation's device. The first call on a device makes it.
func (e *Engine) communicatorFor(call runner.Call, op coll.Op) (*communicator, error) {
	if c := e.communicatorOf(op.Device); c != nil {
		return c, nil
	}
	access, err := e.open(call, op)
	if err != nil {
		return nil, e.refuse(op, err)
	}
	m := e.makingOn(op.Device, access)
	if err := wait(call, m.done, e.gone); err != nil {
		return nil, e.refuse(op, err)
	}
	if m.err != nil {
		return nil, e.errorOf(op, m.err)
	}
	return m.c, nil
}

// makingOn returns the making of the communicator of a device, and begins it unless another call has.
func (e *Engine) makingOn(on coll.Device, access device.Access) *making {
	e.mu.Lock()
	m, known := e.making[on]
	if !known {
		m = &making{done: make(chan struct{}), err: errors.New("internal error while the communicator was made")}
		e.making[on] = m
	}
	later := len(e.known) > 0
	e.mu.Unlock()
	if known {
		return m
	}
	c := &communicator{engine: e, ended: make(chan struct{}), stop: make(chan struct{})}
	mine := e.seatOn(c, access, on)
	e.group.Go(func() {
		defer close(m.done) // behind the guard: a panic is the group's failure before the caller has an error to make one of
		e.group.Guard(func() { e.make(m, c, on, mine, later) })
	})
	return m
}

// make makes the communicator of a device.
func (e *Engine) make(m *making, c *communicator, on coll.Device, mine Seat, later bool) {
	err := e.settle(c, mine, later)
	e.mu.Lock()
	if err == nil {
		e.known[on] = c // its making stays: a call that has found none in known may come behind it, and must not begin another one
	} else {
		delete(e.making, on)
	}
	e.mu.Unlock()
	m.c, m.err = c, err
	if err != nil || c.joined == nil {
		return
	}
	e.group.Go(c.watch)
	if e.down.Load() { // a group that goes down sets this, then looks for communicators; it may be freed by now
		c.abort()
	}
}

// seatOn finds out whether this rank can use the library on a device, and takes a stream there.
// Requires: the caller's thread.
func (e *Engine) seatOn(c *communicator, access device.Access, on coll.Device) Seat {
	s := Seat{Place: fmt.Sprintf("%v of host %s", on, e.group.Host)}
	rt, ok := access.(device.Launcher)
	if !ok {
		s.Why = fmt.Sprintf("%v is reached through %s, whose streams take no kernels", on, access.Name())
		return s
	}
	if rt.Vendor() != e.method.Vendor() {
		s.Why = fmt.Sprintf("%v is a device of %s, and %s is for those of %s", on, rt.Vendor(), e.method.Name(), e.method.Vendor())
		return s
	}
	s.Scales = scales(rt)
	var err error
	if s.Device, err = rt.Identity(); err == nil {
		c.place = place{on, rt.Name()}
		c.stream, err = e.pool.takeStream(rt, c.place)
	}
	if err == nil {
		c.current = rt.Current
		err = rt.Current(func() error { return e.method.Seat(&s, on) })
	}
	if err != nil {
		s.Why = err.Error()
	}
	return s
}

// settle makes a communicator, or finds out on all ranks that they do without the library on this device. later tells that it is not
// the first one of the group.
func (e *Engine) settle(c *communicator, mine Seat, later bool) error {
	e.joining.Lock()
	defer e.joining.Unlock()
	reasons, failed, err := e.refused, false, error(nil)
	use := false // not after a panic either
	defer func() {
		if !use {
			c.forsake()
		}
	}()
	if reasons == nil {
		reasons, failed, err = e.join(c, mine, later)
	}
	use = err == nil && !lacks(reasons)
	if err != nil {
		return err
	}
	if failed {
		e.refused = reasons
	}
	return e.group.Settled(reasons, failed)
}

// join makes this rank's side of a communicator. It returns for each rank why the ranks do without the library, and whether they had
// begun to join.
// Requires: joining.
func (e *Engine) join(c *communicator, mine Seat, later bool) (reasons []string, failed bool, err error) {
	purpose := "devices for " + e.method.Name()
	if later {
		purpose += ", at the first collective on another device"
	}
	seats, err := exchange(e, purpose, mine)
	if err != nil {
		return nil, false, err
	}
	if reasons = e.compare(seats); lacks(reasons) {
		return reasons, false, nil
	}
	group := e.group
	group.hasGraphs = c.hasGraphs
	joined, why, err := e.method.Join(Joining{Group: group, Device: c.place.device, Current: c.current, Seats: seats})
	if err != nil {
		return nil, false, err
	}
	c.joined = joined
	c.scales = !slices.ContainsFunc(seats, func(s Seat) bool { return !s.Scales })
	goOn := func() error { return nil } // the callers, who wait for this goroutine, handle signals
	for began, own := time.Now(), (report{}); ; {
		if c.joined != nil && own == (report{}) {
			own.Joined, why = c.progress(began)
		}
		if why != nil {
			e.explained(why, min(group.ReportWait, group.Timeout()-timeoutMargin), goOn) // peers wait for the exchange
			own.Why, why = why.Error(), nil
		}
		reports, err := exchange(e, "join of "+e.method.Name(), own)
		if err != nil {
			return nil, false, err
		}
		for rank, r := range reports {
			reasons[rank] = r.Why
		}
		if lacks(reasons) {
			return reasons, true, nil
		}
		if !slices.Contains(reports, report{}) {
			return reasons, false, nil
		}
	}
}

// progress waits for the join of all ranks, and returns how far this rank is after joinSlice: whether it has joined, and why it cannot.
func (c *communicator) progress(began time.Time) (joined bool, why error) {
	slice := errors.New("the slice is over")
	bound, end := min(joinBound, c.engine.group.Timeout()), time.Now().Add(joinSlice)
	why = c.poll(func() error {
		switch now := time.Now(); {
		case now.Sub(began) > bound:
			return fmt.Errorf("the join of all ranks takes longer than %v", bound)
		case now.After(end):
			return slice
		}
		return nil
	})
	if why == slice {
		return false, nil
	}
	return why == nil, why
}

// exchange gives every rank the values of all ranks.
func exchange[T any](e *Engine, purpose string, mine T) ([]T, error) {
	message, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := e.group.Exchange(purpose, message)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(all))
	for rank, text := range all {
		if err := json.Unmarshal(text, &list[rank]); err != nil {
			return nil, fmt.Errorf("rank %d has sent what no rank sends as %s: %w", rank, purpose, err)
		}
	}
	return list, nil
}

// compare returns for each rank why it cannot use the method: its own reason, or that of the method.
func (e *Engine) compare(seats []Seat) []string {
	reasons := make([]string, len(seats))
	for rank, s := range seats {
		reasons[rank] = s.Why
	}
	if lacks(reasons) {
		return reasons
	}
	return e.method.Compare(seats)
}

func lacks(reasons []string) bool {
	return slices.ContainsFunc(reasons, func(why string) bool { return why != "" })
}
