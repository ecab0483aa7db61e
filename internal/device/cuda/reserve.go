//go:build cuda

package cuda

import (
	"sync"

	"sagecomm/internal/device"
)

// reserveSize is how many streams of each role are made at once: for the lanes of some groups, and for the peers of their p2p operations.
const reserveSize = 8

var reserved = reserve{streams: map[int]map[device.Role][]device.Stream{}}

// reserve has streams that were made ahead. The driver may wait for the device when it makes one (580.159.04 does now and then), and all
// other threads that call it wait meanwhile. So a stream that waits for a peer could keep this process from calling what the peer waits for.
// The first streams are made before any of them waits.
type reserve struct {
	mu      sync.Mutex
	streams map[int]map[device.Role][]device.Stream // by index of the device; those made first come first
}

// take returns a stream. Where none is left it makes more of them.
func (r *reserve) take(d *Driver, role device.Role) (device.Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.streams[d.index]
	if of == nil {
		of = map[device.Role][]device.Stream{}
		r.streams[d.index] = of
		for _, each := range []device.Role{device.Inputs, device.Outputs} {
			of[each], _ = d.makeStreams(each) // an error comes again when one is needed
		}
	}
	if len(of[role]) == 0 {
		var err error
		if of[role], err = d.makeStreams(role); len(of[role]) == 0 {
			return device.Stream{}, err
		}
	}
	s := of[role][0]
	of[role] = of[role][1:]
	return s, nil
}

// makeStreams makes as many streams as it can, up to reserveSize. The error is why there are not more.
func (d *Driver) makeStreams(role device.Role) (list []device.Stream, err error) {
	for range reserveSize {
		s, err := d.makeStream(role)
		if err != nil {
			return list, err
		}
		list = append(list, s)
	}
	return list, nil
}
