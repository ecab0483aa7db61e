package pgbackend

import (
	"encoding/binary"
	"net"
	"time"

	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
)

// passing is one direction of a pipe.
type passing struct {
	p       *pipe
	from    int
	in, out *net.TCPConn
	said    int // index in wire.said, -1 for who was dialed

	left   int    // bytes of the handshake that are to come
	head   []byte // of the header that comes
	body   int    // bytes of the payload that are to come
	length int    // of the payload
	frame  []byte // the frame so far
	before []byte // the frame before it, nil for a heartbeat

	fragments int // bytes that still go in small pieces
}

// pass passes bytes on, one part after another: a part of the handshake, of a header, or of a payload. It reports false
// when the direction is over.
func (s *passing) pass(b []byte) bool {
	w := s.p.w
	if s.said >= 0 {
		w.mu.Lock()
		if said := w.said[s.said]; len(said) < dialerSays {
			said = append(said, b[:min(len(b), dialerSays-len(said))]...)
			if w.said[s.said] = said; len(said) == dialerSays && !w.tls {
				s.p.index = int(said[dialerSays-handshake.TagBytes-introductionBytes+connectionAt])
			}
		}
		w.mu.Unlock()
	}
	for len(b) > 0 {
		part, n, at := "byte", len(b), 0
		switch {
		case s.left > 0:
			n = min(n, s.left)
			s.left -= n
		case w.tls:
		case s.body > 0:
			part, n, at = "payload", min(n, s.body), s.length-s.body
		default:
			part, n, at = "header", min(n, tcp.HeaderBytes-len(s.head)), len(s.head)
		}
		if !s.strike(part, at, b[:n]) {
			return false
		}
		if part != "byte" {
			s.note(part, b[:n])
		}
		b = b[n:]
	}
	return true
}

// note follows the frames.
func (s *passing) note(part string, b []byte) {
	s.frame = append(s.frame, b...)
	if part == "header" {
		if s.head = append(s.head, b...); len(s.head) < tcp.HeaderBytes {
			return
		}
		s.length = int(binary.LittleEndian.Uint32(s.head[4:]))
		s.body = s.length
	} else {
		s.body -= len(b)
	}
	if s.body == 0 {
		s.before = nil
		if s.head[0] != byte(tcp.Heartbeat) {
			s.before = append([]byte{}, s.frame...)
		}
		s.head, s.frame = s.head[:0], s.frame[:0]
	}
}

// strike passes a part on, with the fault if it happens in it.
func (s *passing) strike(part string, at int, b []byte) bool {
	w := s.p.w
	w.mu.Lock()
	f := w.fault
	where := 0
	if f != nil {
		wanted := f.part == "byte" || f.part == part || w.tls
		switch {
		case f.from >= 0 && f.from != w.ends[s.from] || f.index >= 0 && f.index != s.p.index || f.index == anyData && s.p.index == 0:
			f = nil
		case f.skip >= len(b):
			f.skip -= len(b)
			f = nil
		case !wanted || f.action == "replay" && !w.tls && (at != 0 || s.before == nil):
			f = nil
		case f.part == "byte" || w.tls:
			where = f.skip
		default:
			where = min(f.offset, len(b)-1)
		}
	}
	if f != nil {
		w.fault, w.at = nil, time.Now()
		close(w.struck)
	}
	w.mu.Unlock()
	if f == nil {
		return s.write(b)
	}
	if !s.write(b[:where]) {
		return false
	}
	switch f.action {
	case "reset":
		abortConn(s.out)
		abortConn(s.in)
		return false
	case "truncate":
		_ = s.out.Close()
		_ = s.in.Close()
		return false
	case "damage":
		b[where] ^= f.mask
	case "replay":
		again := s.before
		if w.tls {
			again = append([]byte{}, b[where:]...)
		}
		if !s.write(again) {
			return false
		}
	case "hole", "holes", "drop", "drops": // of all connections, as where a network is cut
		w.mu.Lock()
		for p := range w.pipes {
			for i := range p.conns {
				switch one := i == s.from; {
				case f.action == "hole" && one, f.action == "holes":
					p.holes[i].Store(true)
				case f.action == "drop" && one, f.action == "drops":
					if err := drop(p.conns[i]); err != nil {
						w.t.Error(err)
					}
				}
			}
		}
		w.mu.Unlock()
	case "stall":
		select {
		case <-time.After(150 * time.Millisecond): // the fault itself
		case <-w.done:
		}
	case "stop":
		w.mu.Lock()
		w.hold(s.from)
		w.mu.Unlock()
	case "fragments":
		s.fragments = 400
	}
	return s.write(b[where:])
}

// write passes bytes on, unless a hole swallows them.
func (s *passing) write(b []byte) bool {
	for len(b) > 0 && !s.p.holes[s.from].Load() {
		if !s.p.w.mayPass(s.from) {
			return false
		}
		n := len(b)
		if s.fragments > 0 {
			n = min(n, 1+s.fragments%7)
			s.fragments -= n
		}
		if _, err := s.out.Write(b[:n]); err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}
