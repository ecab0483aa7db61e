//go:build cuda

package cuda

import (
	"sync"

	"sagecomm/internal/device"
)

// reserveSize is how many streams of each role are made at once: for the collectives of some groups, and for the p2p operations of one.
const reserveSize = 16

var reserved = reserve{streams: map[int]map[device.Role][]device.Stream{}}

// reserve has streams that were made ahead. The driver may wait for the device when it makes one (580.159.04 does now and then), and all
// other threads that call it wait meanwhile. So a stream that waits for a peer could keep this process from calling what the peer waits for.
// The first streams are made before any of them waits.
type reserve struct {
	mu      sync.Mutex
	streams map[int]map[device.Role][]device.Stream // by index of the device; those made first come first
}

// take returns a stream. Where none is left it makes one.
func (r *reserve) take(d *Driver, role device.Role) (device.Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.streams[d.index]
	if of == nil {
		of = map[device.Role][]device.Stream{}
		r.streams[d.index] = of
		for range reserveSize { // in turns: an engine's two streams do not share a queue of the hardware, also if they have one priority
			for _, each := range []device.Role{device.Inputs, device.Outputs} {
				if s, err := d.makeStream(each); err == nil { // an error comes again when one is needed
					of[each] = append(of[each], s)
				}
			}
		}
	}
	if len(of[role]) == 0 {
		return d.makeStream(role)
	}
	s := of[role][0]
	of[role] = of[role][1:]
	return s, nil
}
