package shadow

import (
	"fmt"
	"sync/atomic"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// The p2p operations of a pair: the pumps mirror the fifos of docs/protocol.md, section 8, frame for frame. All frames of a lane go over the
// connection of channel 0.

// mostUnreleased is what may be untold of eager bytes that the recvs of this rank have matched, before the remote rank is told.
const mostUnreleased = 32 << 10

// mostUnread is what may be untold of what this rank has read. The sum of it and of the longest wait of a writer is below the length of a fifo.
func (p *Pair) mostUnread() uint64 { return p.Geometry.Fifo / 4 }

// outFifo is the way of what this rank has written. Who has the turn to push changes it.
type outFifo struct {
	offset   *atomic.Uint64 // of this rank's fifo, 0 before there is one
	fifo     runner.Fifo    // this rank's
	found    bool           // there is one
	room     *atomic.Uint64 // read by the remote rank: in the shadow
	credit   *atomic.Uint64 // eager bytes that the remote rank has matched: in the shadow
	pushed   atomic.Uint64  // bytes of the own fifo that were sent, or are being sent
	eager    atomic.Uint64  // payload bytes of EAGER in them
	read     uint64         // as the remote rank was told
	released uint64         // as the remote rank was told
	direct   uint64         // end of the last piece that was sent before it was published
	seen     uint64         // what was published then
}

// isSent reports whether all that is published was sent. Pieces that are sent straight out of a buffer are published behind that.
func (f *outFifo) isSent(written uint64) bool {
	pushed := f.pushed.Load()
	return written == pushed || pushed == f.direct && f.seen <= written && written < pushed
}

// inFifo is the mirror of what the remote rank has written. Who reads the connection uses it.
type inFifo struct {
	fifo     runner.Fifo
	read     *atomic.Uint64 // by this rank
	released *atomic.Uint64 // eager bytes that this rank has matched
	written  uint64
	at       uint64 // of the frame whose payload is being read
	eager    uint64 // payload bytes of EAGER so far
	place    [1][]byte
	expected map[uint64]*expected // by operation
	direct   *expected            // where the payload goes that is being read, nil: into the fifo
}

// kinds of frames of a fifo and of the link.
var (
	kindOf  = map[tcp.Kind]int{tcp.Eager: runner.FrameEager, tcp.Announce: runner.FrameAnnounce, tcp.Grant: runner.FrameGrant, tcp.Data: runner.FrameData}
	frameOf = [...]tcp.Kind{runner.FrameEager: tcp.Eager, runner.FrameAnnounce: tcp.Announce, runner.FrameGrant: tcp.Grant, runner.FrameData: tcp.Data}
)

// pushFifo sends what lies in this rank's fifo of a lane, and what is untold of the opposite one. It reports whether there was anything.
func (p *Pair) pushFifo(number int) (moved bool, err error) {
	l := &p.lanes[number]
	f := &l.out
	if offset := f.offset.Load(); !f.found && offset != 0 {
		at, err := p.find("fifo", offset, uint64(p.Geometry.FifoMemory()))
		if err != nil {
			return false, err
		}
		f.fifo, f.found = p.Geometry.FifoAt(at), true
	}
	if f.found {
		own := f.fifo
		for written := own.Written().Load(); !f.isSent(written); moved = true {
			at := f.pushed.Load()
			frame, size, err := own.Frame(at, written)
			if err != nil {
				err = fmt.Errorf("shared memory corrupted: the fifo of rank %d to rank %d has %w; %s", p.Rank, p.To, err, runner.StrayPointers)
				p.Link.Break(err)
				return moved, err
			}
			if frame.Kind == runner.FrameWrap {
				f.pushed.Store(at + size)
				continue
			}
			if err := p.pushFrame(number, &frame, own.Payload(at, frame.Bytes), at+size); err != nil {
				return moved, err
			}
		}
	}
	h := p.header(tcp.Credit)
	h.Lane, h.Taken, h.Block = uint8(number), l.in.read.Load(), l.in.released.Load()
	if h.Taken-f.read >= p.mostUnread() || h.Block-f.released >= mostUnreleased {
		read, released := f.read, f.released
		f.read, f.released, moved = h.Taken, h.Block, true
		if err = p.bare(p.connection(number, 0), &h); err != nil {
			f.read, f.released = read, released
		}
		return moved, err
	}
	return moved, nil
}

// pushFrame sends a frame of the own fifo, which ends at a position.
func (p *Pair) pushFrame(number int, frame *runner.Frame, payload []byte, end uint64) error {
	l := &p.lanes[number]
	f := &l.out
	h := p.header(frameOf[frame.Kind])
	h.Lane, h.Number, h.Taken, h.Block = uint8(number), frame.ID, l.in.read.Load(), l.in.released.Load()
	switch frame.Kind {
	case runner.FrameEager, runner.FrameAnnounce:
		h.Hash, h.Tag, h.Type = frame.Total, frame.Tag, frame.Type
	case runner.FrameData:
		h.Hash = frame.Total
	}
	began, eager, read, released := f.pushed.Load(), f.eager.Load(), f.read, f.released
	if frame.Kind == runner.FrameEager {
		f.eager.Store(eager + frame.Bytes)
	}
	f.pushed.Store(end) // the remote rank may have taken it before Send returns
	f.read, f.released = h.Taken, h.Block
	err := p.send(p.connection(number, 0), &h, payload)
	if err != nil {
		f.pushed.Store(began)
		f.eager.Store(eager)
		f.read, f.released = read, released
	}
	return err
}

// acceptP2P compares the header of a frame of a fifo, or of CREDIT, with what may come, and returns where its payload goes.
// Requires: the lock.
func (p *Pair) acceptP2P(on int, h *tcp.Header) ([][]byte, error) {
	if int(h.Lane) >= len(p.lanes) || on != p.connection(int(h.Lane), 0) {
		return nil, p.wrong(h, "p2p operations of lane %d on connection %d", h.Lane, on)
	}
	l := &p.lanes[h.Lane]
	if pushed := l.out.pushed.Load(); h.Taken > pushed {
		return nil, p.wrong(h, "%d bytes were read, after %d were sent", h.Taken, pushed)
	}
	if eager := l.out.eager.Load(); h.Block > eager {
		return nil, p.wrong(h, "%d eager bytes were matched, after %d were sent", h.Block, eager)
	}
	if h.Kind == tcp.Credit {
		return nil, nil
	}
	f := &l.in
	n := uint64(h.Bytes)
	switch h.Kind {
	case tcp.Eager:
		if released := f.released.Load(); runner.Lane(h.Lane) != runner.HostLane || n != h.Hash || f.eager+n-released > runner.EagerCredit {
			return nil, p.wrong(h, "%d bytes of %d in lane %d, after %d of which %d were matched", n, h.Hash, h.Lane, f.eager, released)
		}
	case tcp.Data:
		if n == 0 && h.Hash != 0 {
			return nil, p.wrong(h, "no bytes of %d", h.Hash)
		}
	}
	f.at = f.written
	need, rest := runner.FrameBytes(n), f.fifo.Rest(f.at)
	if rest < need {
		f.at += rest
	}
	if read := f.read.Load(); n > p.Geometry.PieceBytes() || f.at+need-read > p.Geometry.Fifo {
		return nil, p.wrong(h, "%d bytes, after %d have come and %d were read", n, f.written, read)
	}
	if n == 0 {
		return nil, nil
	}
	f.place[0] = f.placeOf(h)
	p.placed |= 1 << on
	return f.place[:], nil
}

// storeP2P stores what such a frame says, whose payload is in its place.
// Requires: the lock.
func (p *Pair) storeP2P(h *tcp.Header) {
	l := &p.lanes[h.Lane]
	l.in.place[0] = nil
	news := raise(l.out.credit, h.Block)
	news = raise(l.out.room, h.Taken) || news
	if kind, is := kindOf[h.Kind]; is {
		news = true
		f := &l.in
		n := uint64(h.Bytes)
		if f.at != f.written {
			f.fifo.PutWrap(f.written)
		}
		tag := h.Tag
		if f.cameDirectly(h) {
			tag = runner.Delivered
		}
		f.fifo.Put(f.at, runner.Frame{Kind: kind, Type: h.Type, Tag: tag, Bytes: n, Total: h.Hash, ID: h.Number})
		if h.Kind == tcp.Eager {
			f.eager += n
		}
		f.written = f.at + runner.FrameBytes(n)
		f.fifo.Written().Store(f.written)
	}
	if news { // what says nothing new wakes nobody
		l.own.WakeP2P(p.engine)
	}
}

// raise stores a count that never falls, and reports whether it has risen. Only its writer calls it.
func raise(word *atomic.Uint64, to uint64) bool {
	if to <= word.Load() {
		return false
	}
	word.Store(to)
	return true
}
