package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake of a connection to a [Server]. All messages have fixed lengths. The client proves first that it has the key, so
// that a stranger gets nothing from a server that depends on the key. Both nonces stand in both proofs.
//
//	client: magic, key space, nonce of the client
//	server: nonce of the server
//	client: HMAC(key, "client", magic, key space, both nonces)
//	server: HMAC(key, "server", ...)
//
// A server closes the connection where the client's proof is wrong. It does so in the same way, and after the same messages, if it
// has no such key space.
const (
	helloMagic = "sagestr1"
	nonceBytes = 32
	helloBytes = len(helloMagic) + spaceBytes + nonceBytes
)

// handshakeTimeout is the time that a client has for its part of the handshake. It sends helloBytes + 32 bytes.
const handshakeTimeout = 5 * time.Second

// Limits of frames after the handshake.
const (
	maxKey   = 1 << 10
	maxValue = 1 << 20
	maxFrame = maxValue + 64<<10 // a get of many keys is the longest request
	tagBytes = 16
)

// errRefused is the client's error where the server did not accept its proof, or proved nothing itself.
var errRefused = errors.New("the store of the unique id does not accept the secret of this rank: the id is of an earlier run or its group is complete, or SAGECOMM_SECRET_FILE is not the same on all ranks")

// session is a connection whose ends have proved to each other that they have the key. A frame is a length of 4 bytes, a body,
// and a tag of 16 bytes that proves that the other end has sent it, and as which one in its direction.
type session struct {
	net.Conn
	in, out   [sha256.Size]byte // keys of the tags, by direction
	nIn, nOut uint64            // frames so far
}

func transcript(hello, nonce []byte) []byte { return append(bytes.Clone(hello), nonce...) }

func newSession(c net.Conn, key [sha256.Size]byte, talk []byte, server bool) *session {
	s := &session{Conn: c, in: mac(key[:], "sagecomm store, frames of the server", talk), out: mac(key[:], "sagecomm store, frames of the client", talk)}
	if server {
		s.in, s.out = s.out, s.in
	}
	return s
}

func clientProof(key [sha256.Size]byte, talk []byte) [sha256.Size]byte {
	return mac(key[:], "sagecomm store, client", talk)
}

func serverProof(key [sha256.Size]byte, talk []byte) [sha256.Size]byte {
	return mac(key[:], "sagecomm store, server", talk)
}

// greet is the client's side.
func greet(c net.Conn, space [spaceBytes]byte, key [sha256.Size]byte, deadline time.Time) (*session, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	hello := make([]byte, helloBytes)
	_, _ = rand.Read(hello[copy(hello, append([]byte(helloMagic), space[:]...)):])
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	nonce := make([]byte, nonceBytes)
	if _, err := io.ReadFull(c, nonce); err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	talk := transcript(hello, nonce)
	mine := clientProof(key, talk)
	if _, err := c.Write(mine[:]); err != nil {
		return nil, err
	}
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			return nil, err
		}
		return nil, errRefused // the server has closed the connection
	}
	if want := serverProof(key, talk); !hmac.Equal(want[:], theirs[:]) {
		return nil, errRefused
	}
	return newSession(c, key, talk, false), c.SetDeadline(time.Time{})
}

// errStranger is the server's error for a client that has no business here.
var errStranger = errors.New("the client has not proved that it has the secret")

// admit is the server's side. keyOf returns the key of a key space; without one the client fails as it does with a wrong proof.
func admit(c net.Conn, timeout time.Duration, keyOf func([spaceBytes]byte) (key [sha256.Size]byte, known bool)) (s *session, space [spaceBytes]byte, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, space, err
	}
	hello := make([]byte, helloBytes)
	if _, err := io.ReadFull(c, hello[:len(helloMagic)]); err != nil {
		return nil, space, err
	}
	if !bytes.HasPrefix(hello, []byte(helloMagic)) {
		return nil, space, errStranger
	}
	if _, err := io.ReadFull(c, hello[len(helloMagic):]); err != nil {
		return nil, space, err
	}
	copy(space[:], hello[len(helloMagic):])
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce)
	if _, err := c.Write(nonce); err != nil {
		return nil, space, err
	}
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return nil, space, err
	}
	key, known := keyOf(space)
	if !known {
		_, _ = rand.Read(key[:]) // a key that nobody has, so that the work is the same
	}
	talk := transcript(hello, nonce)
	if want := clientProof(key, talk); !hmac.Equal(want[:], theirs[:]) || !known {
		return nil, space, errStranger
	}
	mine := serverProof(key, talk)
	if _, err := c.Write(mine[:]); err != nil {
		return nil, space, err
	}
	return newSession(c, key, talk, true), space, c.SetDeadline(time.Time{})
}

func tag(key [sha256.Size]byte, n uint64, frame []byte) []byte {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], n)
	sum := mac(key[:], "sagecomm store, frame", number[:], frame)
	return sum[:tagBytes]
}

// send writes a frame.
func (s *session) send(body []byte) error {
	if len(body) > maxFrame {
		return fmt.Errorf("a frame of %d bytes: at most %d are sent", len(body), maxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)+tagBytes), uint32(len(body)))
	frame = append(frame, body...)
	frame = append(frame, tag(s.out, s.nOut, frame)...)
	s.nOut++
	_, err := s.Write(frame)
	return err
}

// errFrame is the error of a frame that the other end has not sent.
var errFrame = errors.New("a frame is damaged or was not sent by the other end")

// receive reads a frame. It allocates no more than maxFrame.
func (s *session) receive() (body []byte, err error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return nil, errFrame
	}
	frame := make([]byte, 4+int(n)+tagBytes)
	copy(frame, length[:])
	if _, err := io.ReadFull(s, frame[4:]); err != nil {
		return nil, err
	}
	end := 4 + int(n)
	if !hmac.Equal(tag(s.in, s.nIn, frame[:end]), frame[end:]) {
		return nil, errFrame
	}
	s.nIn++
	return frame[4:end], nil
}
