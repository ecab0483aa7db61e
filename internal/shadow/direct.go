package shadow

import (
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// What passes between a connection and the buffer of a user without a copy in a channel or fifo (docs/protocol.md, section 16, Without a copy).

// expected is where a message, or the pieces of a p2p operation, are to be read to. The lock of the pair guards it.
type expected struct {
	hash, block uint64 // of a message
	data        []byte // nil: nothing is expected
	at          int    // of an operation: bytes that have come
}

// Send implements runner.Pair.
func (p *Pair) Send(m runner.Payload) bool {
	if !p.made.Load() || !p.Link.Plain() {
		return false
	}
	return p.try(func() error {
		if m.Channel == runner.Piece {
			return p.sendPiece(&m)
		}
		return p.sendMessage(&m)
	})
}

func (p *Pair) sendMessage(m *runner.Payload) error {
	c := &p.lanes[m.Lane].channels[m.Channel]
	if c.sent.Load() != m.Number-1 {
		return errFull // the ones before it come first
	}
	return p.pushMessage(m.Lane, m.Channel, m.Number, m.Hash, m.Block, m.Data)
}

func (p *Pair) sendPiece(m *runner.Payload) error {
	f := &p.lanes[m.Lane].out
	begin, pushed := m.Block, f.pushed.Load()
	if !f.found {
		return errFull // the pump finds it
	}
	if pushed != begin && !f.endsWith(pushed, begin) {
		return errFull // what comes before it is not sent yet
	}
	frame := runner.Frame{Kind: runner.FrameData, Bytes: uint64(len(m.Data)), Total: m.Hash, ID: m.Number}
	end := begin + runner.FrameBytes(frame.Bytes)
	if err := p.pushFrame(m.Lane, &frame, m.Data, end); err != nil {
		return err
	}
	f.direct, f.seen = end, f.fifo.Written().Load()
	return nil
}

// endsWith reports whether nothing but a WRAP, which is not sent, lies in the own fifo between two positions.
func (f *outFifo) endsWith(from, to uint64) bool {
	if from >= to {
		return false
	}
	frame, size, err := f.fifo.Frame(from, to)
	return err == nil && frame.Kind == runner.FrameWrap && from+size == to
}

// Expect implements runner.Pair. Only who reads for the runner, and waits for nothing, can be asked to stop (Forget): so not within TLS.
func (p *Pair) Expect(m runner.Payload) bool {
	if !p.made.Load() || !p.Link.Plain() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.lanes[m.Lane]
	if m.Channel == runner.Piece {
		if l.in.expected == nil {
			l.in.expected = map[uint64]*expected{}
		}
		if l.in.expected[m.Number] == nil { // the remote rank has announced it twice, else
			l.in.expected[m.Number] = &expected{data: m.Data}
		}
		return true
	}
	c := &l.channels[m.Channel]
	if c.came < m.Number {
		c.expected, c.next = expected{hash: m.Hash, block: m.Block, data: m.Data}, m.Number
	}
	return true
}

// placeOf returns where the payload of a message goes: to the buffer that waits for it, or into the shadow.
// Requires: the lock.
func (p *Pair) placeOf(c *channel, h *tcp.Header) []byte {
	e := &c.expected
	if c.next == h.Number && e.hash == h.Hash && e.block == h.Block && len(e.data) == int(h.Bytes) {
		c.direct = e.data
		return e.data
	}
	return p.Geometry.PlaceOf(c.in, h.Number).Data[:h.Bytes:h.Bytes]
}

// arrived takes note that a message has come, and forgets the buffer: it may be unmapped soon, and its addresses be used for memory of Go.
// Requires: the lock.
func (c *channel) arrived(h *tcp.Header, place *runner.Place) {
	if c.direct != nil {
		*place.Delivered = h.Number
	}
	c.direct, c.place[0], c.expected = nil, nil, expected{}
	c.came = h.Number
}

// placeOf is that of a frame of the fifo that lies at f.at.
// Requires: the lock.
func (f *inFifo) placeOf(h *tcp.Header) []byte {
	f.direct = nil
	n := int(h.Bytes)
	if h.Kind == tcp.Data {
		if e := f.expected[h.Number]; e != nil && n <= len(e.data)-e.at {
			f.direct = e
			return e.data[e.at : e.at+n : e.at+n]
		}
	}
	return f.fifo.Payload(f.at, uint64(n))
}

// cameDirectly reports whether the frame that has come lies in the buffer of a user. It ends what was expected of an operation that is whole.
// Requires: the lock.
func (f *inFifo) cameDirectly(h *tcp.Header) bool {
	e := f.direct
	if f.direct = nil; e == nil {
		return false
	}
	if e.at += int(h.Bytes); e.at == len(e.data) {
		delete(f.expected, h.Number)
	}
	return true
}

// Forget implements runner.Pair.
func (p *Pair) Forget(lane int) {
	if !p.made.Load() || !p.Link.Plain() {
		return
	}
	l := &p.lanes[lane]
	p.mu.Lock()
	clear(l.in.expected)
	for k := range l.channels {
		l.channels[k].expected, l.channels[k].next = expected{}, 0
	}
	p.mu.Unlock()
	for on := 1; on <= p.Link.Data(); on++ {
		p.Link.Divert(on, func(h *tcp.Header, rest int) [][]byte { return p.divert(lane, h, rest) })
	}
}

// forgetBuffers keeps nothing of buffers of users.
// Requires: the lock; nothing is read for the pair any more.
func (p *Pair) forgetBuffers() {
	if !p.made.Load() {
		return
	}
	for n := range p.lanes {
		l := &p.lanes[n]
		for k := range l.channels {
			c := &l.channels[k]
			c.direct, c.place[0], c.expected, c.next = nil, nil, expected{}, 0
		}
		l.in.direct, l.in.place[0] = nil, nil
		clear(l.in.expected)
	}
}

// divert returns the place in the shadow for the rest of a payload that is being read to a buffer of this pair's lane, else nil. What has come of
// it goes there too, so that the frame is whole: it may be another operation's than the one that fails.
func (p *Pair) divert(lane int, h *tcp.Header, rest int) [][]byte {
	if h.Group != p.Group || int(h.From) != p.To || int(h.To) != p.Rank || int(h.Lane) != lane {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.lanes[lane]
	var from, to []byte
	switch {
	case h.Kind == tcp.Message && int(h.Channel) < runner.Channels && l.channels[h.Channel].direct != nil:
		c := &l.channels[h.Channel]
		from, to = c.direct, p.Geometry.PlaceOf(c.in, h.Number).Data[:h.Bytes]
		c.direct, c.place[0] = nil, nil
	case h.Kind == tcp.Data && l.in.direct != nil:
		from, to = l.in.direct.data[l.in.direct.at:], l.in.fifo.Payload(l.in.at, uint64(h.Bytes))
		l.in.direct, l.in.place[0] = nil, nil
	default:
		return nil
	}
	came := len(to) - rest
	copy(to[:came], from)
	return [][]byte{to[came:]}
}
