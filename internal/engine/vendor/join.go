package vendor

import (
	"encoding/json"
	"fmt"
	"slices"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// This file makes communicators. The ranks make one together when each of them issues its first collective on a device. First
// they tell each other their devices, then rank 0 gives its unique id to all, and in the end they tell each other whether they have
// joined. So all ranks use the library, or none does.

// seat is a rank's part in a communicator.
type seat struct {
	Device string `json:"device"` // its identity
	Place  string `json:"place"`  // its name for texts
	Why    string `json:"why"`    // why the rank cannot use the library; "" if it can
}

// communicatorFor returns the communicator of the operation's device, and makes it at the first call.
func (e *Engine) communicatorFor(call runner.Call, op coll.Op) (*communicator, error) {
	if c := e.communicatorOf(op.Device); c != nil {
		return c, nil
	}
	e.making.Lock()
	defer e.making.Unlock()
	if c := e.communicatorOf(op.Device); c != nil {
		return c, nil
	}
	access, err := e.open(call, op)
	if err != nil {
		return nil, err
	}
	c := &communicator{engine: e, ended: make(chan struct{}), stop: make(chan struct{})}
	reasons, err := e.join(c, access, op.Device)
	if c.joined != nil && (err != nil || lacks(reasons)) {
		c.joined.Abort()
		c.joined = nil
	}
	if err != nil {
		return nil, err
	}
	if lacks(reasons) {
		if err := e.group.Without(reasons); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	e.known[op.Device] = c
	e.mu.Unlock()
	if c.joined != nil {
		go c.watch()
		if e.down.Load() { // a group that fails sets this, then looks for communicators
			c.abort()
		}
	}
	return c, nil
}

// join makes this rank's side of a communicator. It returns for each rank why the ranks do without the library.
// Requires: making.
func (e *Engine) join(c *communicator, access device.Access, on coll.Device) (reasons []string, err error) {
	mine := seat{Place: fmt.Sprintf("%v of host %s", on, e.group.Host)}
	rt, ok := access.(device.Launcher)
	if ok {
		mine.Device, err = rt.Identity()
		if err == nil {
			c.stream, err = e.pool.takeStream(rt, place{on, rt.Name()})
			c.runtime = rt.Name()
		}
		if err != nil {
			mine.Why = err.Error()
		}
	} else {
		mine.Why = fmt.Sprintf("%v is reached through %s, whose streams take no kernels", on, access.Name())
	}
	message, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := e.group.Exchange("devices for "+e.library.Name(), message)
	if err != nil {
		return nil, err
	}
	if reasons, err = compare(all); err != nil || lacks(reasons) {
		return reasons, err
	}
	var id []byte
	own := ""
	if e.group.Rank == 0 {
		if id, err = e.library.NewID(); err != nil {
			own = err.Error()
		}
	}
	if all, err = e.group.Unique(id); err != nil {
		return nil, err
	}
	if own == "" && len(all[0]) > 0 {
		if err := e.joinWith(c, rt, all[0]); err != nil {
			own = err.Error()
		}
	}
	if all, err = e.group.Exchange("join of "+e.library.Name(), []byte(own)); err != nil {
		return nil, err
	}
	for rank, text := range all {
		reasons[rank] = string(text)
	}
	return reasons, nil
}

// joinWith makes the communicator of a unique id, and waits until it can be used.
func (e *Engine) joinWith(c *communicator, rt device.Launcher, id []byte) error {
	err := rt.Current(func() (err error) {
		c.joined, err = e.library.Join(id, e.group.Size, e.group.Rank)
		return err
	})
	if err != nil {
		return err
	}
	return c.await("the join of all ranks", joinBound)
}

// compare returns for each rank why it cannot use the library: its own reason, or that it shares its device with another rank.
func compare(all [][]byte) ([]string, error) {
	reasons := make([]string, len(all))
	first := map[string]int{}
	for rank, text := range all {
		var s seat
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("rank %d has sent no device: %w", rank, err)
		}
		reasons[rank] = s.Why
		if s.Why != "" {
			continue
		}
		if other, taken := first[s.Device]; taken {
			reasons[rank] = fmt.Sprintf("%s is the device of rank %d too", s.Place, other)
		} else {
			first[s.Device] = rank
		}
	}
	return reasons, nil
}

func lacks(reasons []string) bool {
	return slices.ContainsFunc(reasons, func(why string) bool { return why != "" })
}
