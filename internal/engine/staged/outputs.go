package staged

import "sagecomm/internal/device"

// outputs are ranges of memory that collectives write on a device, of those that are under way.
type outputs []output

type output struct {
	from, to uintptr
	by       use
}

// unsettled returns those of a list that the device may still have to write. It overwrites the list.
func (p *Pool) unsettled(list outputs) outputs {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := list[:0]
	for _, o := range list {
		if !o.by.ended() {
			left = append(left, o)
		}
	}
	clear(list[len(left):])
	return left
}

// comeBehindOutputs makes the stream of the input wait for the outputs of earlier collectives if it reads any of them. So an
// operation may use the output of an earlier one of the lane although nobody has waited for that. nccl gives the same, since its
// operations of a group run in one stream.
// Requires: issuing.
func (e *Engine) comeBehindOutputs(b device.Access, on place, s *streams, l *layout) error {
	e.written[on] = e.pool.unsettled(e.written[on])
	for _, o := range e.written[on] {
		for _, p := range l.in.pieces {
			if p.device < o.to && o.from < p.device+uintptr(p.bytes) {
				return b.(device.Waiter).Order(s.out, s.in)
			}
		}
	}
	return nil
}

// noteOutputs keeps the ranges that an operation writes.
// Requires: issuing.
func (e *Engine) noteOutputs(on place, memory *block, l *layout) {
	if !l.out.moved {
		return
	}
	for _, p := range l.out.pieces {
		if p.bytes > 0 {
			e.written[on] = append(e.written[on], output{p.device, p.device + uintptr(p.bytes), memory.used()})
		}
	}
}
