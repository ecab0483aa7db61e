package staged

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Another engine of the same lane may carry out some of its collectives in a stream of its own, and this one the others. The two
// functions keep the order of the lane, so that an operation may read the output of an earlier one.

// Where streams cannot wait for a word, the copies back of an operation are not queued before it is complete, so GoBefore orders those
// operations only that are complete.

// ComeBehind makes the next collectives of this engine wait for what another stream holds now.
func (e *Engine) ComeBehind(rt device.Launcher, on coll.Device, other device.Stream) error {
	s, err := e.streamsOn(rt, place{on, rt.Name()})
	if err != nil {
		return err
	}
	e.issuing.Lock()
	defer e.issuing.Unlock()
	s.beside = true
	return rt.Order(other, s.in)
}

// GoBefore makes another stream wait for the collectives of this engine so far.
func (e *Engine) GoBefore(rt device.Launcher, on coll.Device, other device.Stream) error {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	s, known := e.streams[place{on, rt.Name()}]
	if !known {
		return nil
	}
	return rt.Order(s.out, other)
}
