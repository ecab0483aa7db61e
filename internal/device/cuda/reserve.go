//go:build cuda

package cuda

import "sagecomm/internal/device"

// reserveSize is how many streams of each role are made at once: for the collectives of some groups, and for the p2p operations of one.
const reserveSize = 16

// streamsOf has the streams of each device that were made ahead, those made first come first.
type streamsOf struct {
	reserves device.Once[int, *[2]device.Reserve]
}

var reserved streamsOf

// stream returns a stream. Where none is left it makes one.
func (r *streamsOf) stream(d *Driver, role device.Role) (device.Stream, error) {
	of, err := r.reserves.Get(d.index, func() (*[2]device.Reserve, error) {
		var of [2]device.Reserve
		for range reserveSize { // in turns: an engine's two streams do not share a queue of the hardware, also if they have one priority
			for _, each := range []device.Role{device.Inputs, device.Outputs} {
				if !of[each].Add(func() (device.Stream, error) { return d.makeStream(each) }) {
					return &of, nil
				}
			}
		}
		return &of, nil
	})
	if err != nil {
		return device.Stream{}, err
	}
	return of[role].Take(func() (device.Stream, error) { return d.makeStream(role) })
}
