package vendor

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// Pool keeps the gates and the streams of all groups of the process. They outlive the groups, because a stream lives as long as
// the process, and kernels may still be queued when the group that launched them is gone.
type Pool struct {
	mu      sync.Mutex // nobody holds it in a call of the device, which may wait: it would hold up all groups
	gates   map[source]*gates
	streams map[place][]device.Stream // that no communicator has

	ending atomic.Int64 // communicators that are being ended
	exits  atomic.Bool  // the process waits for them and ends then
}

// source is who allocates pinned memory: an implementation of device.Runtime, for devices of a type.
type source struct {
	device  coll.DeviceType
	runtime string
}

// place is a device, as an implementation of device.Runtime reaches it.
type place struct {
	device  coll.Device
	runtime string
}

// gates are those of one source. Their memory is never released: there are as many as operations were under way at once.
type gates struct{ idle, busy []*gate }

type gate struct {
	*runner.GateWords
	uses atomic.Uint64 // operations that have had it

	// of is the lane of the operation that has it, by the handle of its runner, and timesOut when that may time out, 0 if it is not
	// numbered. Guarded by Pool.mu.
	of       uint64
	timesOut time.Time
}

// use is the use of a gate by one operation.
type use struct {
	*gate
	number uint64
}

// done reports whether the device is behind the operation. Another operation may have the gate by now.
func (u use) done() bool {
	if u.uses.Load() == u.number && u.Moved(1, 1) {
		return true
	}
	if u.uses.Load() == u.number {
		return false
	}
	u.SeenReset()
	return true
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{gates: map[source]*gates{}, streams: map[place][]device.Stream{}}
}

// slabBytes is the pinned memory that is allocated at once for gates.
const slabBytes = 64 << 10

// takeGate returns a gate whose words are 0. It is in use until the device has written both of its words and the run has ended.
func (p *Pool) takeGate(rt device.Runtime, of source) (use, error) {
	if u, ok := p.idleGate(of, nil); ok {
		return u, nil
	}
	memory, err := rt.Pin(slabBytes)
	if err != nil {
		return use{}, err
	}
	var more []*gate
	for at := uintptr(0); at+runner.GateBytes <= slabBytes; at += runner.GateBytes {
		more = append(more, &gate{GateWords: (*runner.GateWords)(unsafe.Add(memory.Address(), at))})
	}
	u, _ := p.idleGate(of, more)
	return u, nil
}

// idleGate takes out a gate that nobody uses, having added some.
func (p *Pool) idleGate(of source, more []*gate) (u use, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.gates[of]
	if g == nil {
		g = &gates{}
		p.gates[of] = g
	}
	g.idle = append(g.idle, more...)
	if len(g.idle) == 0 {
		left := g.busy[:0]
		for _, w := range g.busy {
			if w.Moved(1, 1) && w.Opened() {
				w.timesOut = time.Time{}
				g.idle = append(g.idle, w)
			} else {
				left = append(left, w)
			}
		}
		g.busy = left
	}
	if len(g.idle) == 0 {
		return use{}, false
	}
	w := g.idle[len(g.idle)-1]
	g.idle = g.idle[:len(g.idle)-1]
	g.busy = append(g.busy, w)
	number := w.uses.Add(1)
	w.Reset()
	return use{w, number}, true
}

// waits reports whether a stream may wait for a peer in an operation of this pool, whose run has not ended.
func (p *Pool) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gates {
		if slices.ContainsFunc(g.busy, func(w *gate) bool { return !w.Opened() }) {
			return true
		}
	}
	return false
}

// limit notes when the operation of a lane that has a gate may time out.
func (p *Pool) limit(of uint64, u use, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u.of, u.timesOut = of, at
}

// firstTimeout returns when an operation of a lane may time out that is under way, at the earliest. It returns false if there is none.
func (p *Pool) firstTimeout(of uint64) (first time.Time, has bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gates {
		for _, w := range g.busy {
			if w.of == of && !w.timesOut.IsZero() && !w.Opened() && (!has || w.timesOut.Before(first)) {
				first, has = w.timesOut, true
			}
		}
	}
	return first, has
}

// giveGate takes a gate back that no run and no device has.
func (p *Pool) giveGate(of source, u use) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.gates[of]
	g.busy = slices.DeleteFunc(g.busy, func(w *gate) bool { return w == u.gate })
	u.timesOut = time.Time{}
	g.idle = append(g.idle, u.gate)
}

// takeStream returns a stream that a communicator has given back, or makes one.
func (p *Pool) takeStream(rt device.Runtime, of place) (device.Stream, error) {
	if s, ok := p.givenStream(of); ok {
		return s, nil
	}
	return rt.NewStream(device.Inputs)
}

func (p *Pool) givenStream(of place) (s device.Stream, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.streams[of]); n > 0 {
		s, p.streams[of] = p.streams[of][n-1], p.streams[of][:n-1]
		return s, true
	}
	return s, false
}

// giveStream takes a stream back. Requires: what it holds ends by itself.
func (p *Pool) giveStream(of place, s device.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[of] = append(p.streams[of], s)
}

// exitBound is a little longer than the end of a communicator waits, for streams and then for peers, before it is aborted.
const exitBound = quietBound + graphsLinger + graphsBound + time.Second

// Wait waits until the communicators have ended whose end has begun, for a short time: a process that ends must not take the driver
// away from them.
func (p *Pool) Wait() {
	p.exits.Store(true)
	for end := time.Now().Add(exitBound); p.ending.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
