package shadow

import (
	"errors"
	"fmt"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// What comes for a pair: a frame is compared with what may come, its payload is read to its place, then what the frame says is stored.

var errNoFrame = errors.New("a frame that the remote rank does not send")

// wrong returns the error of a frame. The link's own error says of which process it came.
func (p *Pair) wrong(h *tcp.Header, format string, args ...any) error {
	return fmt.Errorf("%w: %v from rank %d to rank %d: %s", errNoFrame, h.Kind, p.To, p.Rank, fmt.Sprintf(format, args...))
}

// accept compares a header with what may come, and returns where its payload goes.
func (p *Pair) accept(on int, h *tcp.Header) ([][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch ends := h.Kind == tcp.Goodbye || h.Kind == tcp.Close; {
	case p.removed && !ends:
		return nil, tcp.ErrDrop
	case p.removed && p.closes&(1<<on) == 0:
		return nil, nil
	}
	if h.Kind == tcp.Close && !p.over && p.byes&(1<<on) == 0 && !p.given {
		return nil, p.wrong(h, "it comes without a goodbye on connection %d, and this rank has not given up", on)
	}
	if p.closes&(1<<on) != 0 || h.Kind != tcp.Close && (p.over || p.byes&(1<<on) != 0) {
		return nil, p.wrong(h, "it comes on connection %d behind the end", on) // the memory may have been given back
	}
	p.heard = true
	switch h.Kind {
	case tcp.Open:
		if p.opened {
			return nil, p.wrong(h, "it comes for the second time")
		}
		return nil, nil
	case tcp.Message, tcp.Room:
		if int(h.Lane) >= len(p.lanes) || int(h.Channel) >= runner.Channels || on != p.connection(int(h.Lane), int(h.Channel)) {
			return nil, p.wrong(h, "channel %d of lane %d on connection %d", h.Channel, h.Lane, on)
		}
		l := &p.lanes[h.Lane]
		c := &l.channels[h.Channel]
		if sent := c.sent.Load(); h.Taken > sent {
			return nil, p.wrong(h, "%d messages were taken, after %d were sent", h.Taken, sent)
		}
		if h.Kind == tcp.Room {
			return nil, nil
		}
		if taken := c.taken.Load(); h.Number != c.came+1 || h.Number > taken+runner.ChannelPlaces {
			return nil, p.wrong(h, "number %d, after %d have come and %d were taken", h.Number, c.came, taken)
		}
		if uint64(h.Bytes) > p.Geometry.Message {
			return nil, p.wrong(h, "%d bytes, at most %d are sent", h.Bytes, p.Geometry.Message)
		}
		if h.Bytes == 0 {
			return nil, nil
		}
		c.place[0] = p.placeOf(c, h)
		p.placed |= 1 << on
		return c.place[:], nil
	case tcp.Eager, tcp.Announce, tcp.Grant, tcp.Data, tcp.Credit:
		return p.acceptP2P(on, h)
	case tcp.Ask, tcp.State, tcp.Exchange:
		return p.acceptControl(h)
	case tcp.Goodbye, tcp.Close:
		return nil, nil
	}
	return nil, p.wrong(h, "it is of no use here")
}

// store stores what a frame says, whose payload is in its place. rings: the pump has to do something about it.
func (p *Pair) store(on int, h *tcp.Header) (rings bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placed &^= 1 << on
	if p.removed { // after the frame was accepted
		p.payload = nil
		p.unmap()
		return p.storeRemoved(on, h), nil
	}
	switch h.Kind {
	case tcp.Open:
		p.opened = true
	case tcp.Message, tcp.Room:
		l := &p.lanes[h.Lane]
		k := int(h.Channel)
		news := raise(l.channels[k].room, h.Taken)
		if h.Kind == tcp.Message {
			news = true
			place := p.Geometry.PlaceOf(l.channels[k].in, h.Number)
			*place.Hash, *place.Bytes, *place.Block = h.Hash, uint64(h.Bytes), h.Block
			l.channels[k].arrived(h, &place)
			place.Filled.Store(h.Number)
			runner.SentOf(l.channels[k].in).Store(h.Number)
		}
		if news {
			l.own.Wake(p.To, p.engine)
		}
	case tcp.Goodbye:
		if p.byes&(1<<on) != 0 || h.Number == 0 || p.bye != 0 && p.bye != h.Number || p.after != 0 && p.after != h.Number {
			return false, p.wrong(h, "number %d on connection %d", h.Number, on)
		}
		p.byes |= 1 << on
		p.bye = h.Number
		if p.all(p.byes) && h.Number == gaveUp {
			p.gaveUp = true // the pump does the rest
			return true, nil
		}
		if p.all(p.byes) {
			p.left.Store(h.Number)
			for n := range p.lanes {
				p.lanes[n].own.WakeAll(p.engine)
			}
		}
	case tcp.Close:
		p.closes |= 1 << on
		p.end()
		return p.over, nil // the pump takes it off its list
	case tcp.Ask, tcp.State, tcp.Exchange:
		return p.storeControl(h)
	default:
		p.storeP2P(h)
	}
	return false, nil
}

// storeRemoved takes note of what ends a pair that was removed. A remote rank that has given up, while this one has removed the pair, gives
// memory back when CLOSE of this one has come. rings: the pump has to send that.
// Requires: the lock.
func (p *Pair) storeRemoved(on int, h *tcp.Header) (rings bool) {
	switch {
	case h.Kind == tcp.Goodbye && h.Number == gaveUp:
		p.byes |= 1 << on
		p.gaveUp = p.all(p.byes)
		return p.gaveUp
	case h.Kind == tcp.Close:
		p.closes |= 1 << on
		return p.all(p.closes)
	}
	return false
}
