package handshake

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// TagBytes is the length of the tag of a frame.
const TagBytes = 16

// Session is a connection whose ends have proved to each other that they have the key. A frame is a length of 4 bytes, a body,
// and a tag of 16 bytes that proves that the other end has sent it, and as which one in its direction.
type Session struct {
	net.Conn
	protocol  Protocol
	in, out   Key    // of the tags, by direction
	nIn, nOut uint64 // frames so far
}

func (p Protocol) newSession(c net.Conn, key Key, talk []byte, server bool) *Session {
	s := &Session{Conn: c, protocol: p, in: MAC(key[:], p.Label+", frames of the server", talk), out: MAC(key[:], p.Label+", frames of the client", talk)}
	if server {
		s.in, s.out = s.out, s.in
	}
	return s
}

func (p Protocol) tag(key Key, n uint64, frame []byte) []byte {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], n)
	sum := MAC(key[:], p.Label+", frame", number[:], frame)
	return sum[:TagBytes]
}

// Send writes a frame.
func (s *Session) Send(body []byte) error {
	if len(body) > s.protocol.Limit {
		return fmt.Errorf("a frame of %d bytes: at most %d are sent", len(body), s.protocol.Limit)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)+TagBytes), uint32(len(body)))
	frame = append(frame, body...)
	frame = append(frame, s.protocol.tag(s.out, s.nOut, frame)...)
	s.nOut++
	_, err := s.Write(frame)
	return err
}

// ErrFrame is the error of a frame that the other end has not sent.
var ErrFrame = errors.New("a frame is damaged or was not sent by the other end")

// Receive reads a frame. It allocates no more than the protocol's limit.
func (s *Session) Receive() (body []byte, err error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if int64(n) > int64(s.protocol.Limit) {
		return nil, ErrFrame
	}
	frame := make([]byte, 4+int(n)+TagBytes)
	copy(frame, length[:])
	if _, err := io.ReadFull(s, frame[4:]); err != nil {
		return nil, err
	}
	end := 4 + int(n)
	if !hmac.Equal(s.protocol.tag(s.in, s.nIn, frame[:end]), frame[end:]) {
		return nil, ErrFrame
	}
	s.nIn++
	return frame[4:end], nil
}
