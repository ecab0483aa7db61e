package vendor

import (
	"sync"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// Pool keeps the gates and the streams of all groups of the process. They outlive the groups, because a stream lives as long as
// the process, and kernels may still be queued when the group that launched them is gone.
type Pool struct {
	mu      sync.Mutex
	gates   map[source]*gates
	streams map[place][]device.Stream // of groups that are gone
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
type gates struct{ idle, busy []*runner.GateWords }

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{gates: map[source]*gates{}, streams: map[place][]device.Stream{}}
}

// slabBytes is the pinned memory that is allocated at once for gates.
const slabBytes = 64 << 10

// gate returns a gate whose words are 0. It is in use until the device has written both of its words and
// the run has ended.
func (p *Pool) gate(rt device.Runtime, of source) (*runner.GateWords, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.gates[of]
	if g == nil {
		g = &gates{}
		p.gates[of] = g
	}
	if len(g.idle) == 0 {
		left := g.busy[:0]
		for _, w := range g.busy {
			if w.Moved(1, 1) && w.Opened() {
				g.idle = append(g.idle, w)
			} else {
				left = append(left, w)
			}
		}
		g.busy = left
	}
	if len(g.idle) == 0 {
		memory, err := rt.Pin(slabBytes)
		if err != nil {
			return nil, err
		}
		for at := uintptr(0); at+runner.GateBytes <= slabBytes; at += runner.GateBytes {
			g.idle = append(g.idle, (*runner.GateWords)(unsafe.Add(memory.Address(), at)))
		}
	}
	w := g.idle[len(g.idle)-1]
	g.idle = g.idle[:len(g.idle)-1]
	g.busy = append(g.busy, w)
	w.Reset()
	return w, nil
}

// takeStream returns the stream of a group that is gone, or makes one.
func (p *Pool) takeStream(rt device.Runtime, of place) (device.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.streams[of]); n > 0 {
		s := p.streams[of][n-1]
		p.streams[of] = p.streams[of][:n-1]
		return s, nil
	}
	return rt.NewStream(device.Inputs)
}

func (p *Pool) giveStream(of place, s device.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[of] = append(p.streams[of], s)
}
