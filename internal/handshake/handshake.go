// Package handshake lets the two ends of a connection prove to each other that they have a key, before either of them reads or tells
// anything else. The stores of unique ids (package bootstrap) and the links between hosts (package transport/tcp) begin with it.
//
// It knows no sockets and keeps nothing. Any goroutine may call it, one at a time for a connection.
package handshake

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake of a connection. All messages have fixed lengths. The client proves first that it has the key, so
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
	MagicBytes = 8
	SpaceBytes = 16
	NonceBytes = 32
	HelloBytes = MagicBytes + SpaceBytes + NonceBytes
	ProofBytes = sha256.Size
)

// Timeout is the time that a client has for its part of the handshake. It sends HelloBytes + ProofBytes.
const Timeout = 5 * time.Second

// Key is what the ends of a connection have in common.
type Key = [sha256.Size]byte

// Space is the name of a key, which is sent in clear.
type Space = [SpaceBytes]byte

// Protocol separates uses of the handshake: a proof of one is none in another.
type Protocol struct {
	Magic string // of MagicBytes
	Label string // in front of all labels of HMACs
	Limit int    // the longest body of a frame of a [Session]
}

var (
	// ErrRefused is the client's error where the server did not accept its proof, or proved nothing itself. One that makes room for another
	// client may end the connection in the same way.
	ErrRefused = errors.New("the other end does not accept the secret, or does not have it")
	// ErrStranger is the server's error for a client that has no business here.
	ErrStranger = errors.New("the client has not proved that it has the secret")
)

func transcript(hello, nonce []byte) []byte { return append(bytes.Clone(hello), nonce...) }

func (p Protocol) clientProof(key Key, talk []byte) Key { return MAC(key[:], p.Label+", client", talk) }

func (p Protocol) serverProof(key Key, talk []byte) Key { return MAC(key[:], p.Label+", server", talk) }

// Greet is the client's side. The connection has no deadline afterwards.
func (p Protocol) Greet(c net.Conn, space Space, key Key, deadline time.Time) (*Session, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	hello := make([]byte, HelloBytes)
	_, _ = rand.Read(hello[copy(hello, append([]byte(p.Magic), space[:]...)):])
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	nonce := make([]byte, NonceBytes)
	if _, err := io.ReadFull(c, nonce); err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	talk := transcript(hello, nonce)
	mine := p.clientProof(key, talk)
	if _, err := c.Write(mine[:]); err != nil {
		return nil, err
	}
	var theirs [ProofBytes]byte
	switch _, err := io.ReadFull(c, theirs[:]); {
	case err == io.EOF: // the server has read the proof and closed the connection
		return nil, ErrRefused
	case err != nil: // as after a reset, which says nothing of the proof
		return nil, fmt.Errorf("no proof: %w", err)
	}
	if want := p.serverProof(key, talk); !hmac.Equal(want[:], theirs[:]) {
		return nil, ErrRefused
	}
	return p.newSession(c, key, talk, false), c.SetDeadline(time.Time{})
}

// Admit is the server's side. keyOf returns the key of a key space; without one the client fails as it does with a wrong proof.
// The connection has no deadline afterwards.
func (p Protocol) Admit(c net.Conn, timeout time.Duration, keyOf func(Space) (key Key, known bool)) (s *Session, space Space, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, space, err
	}
	hello := make([]byte, HelloBytes)
	if _, err := io.ReadFull(c, hello[:MagicBytes]); err != nil {
		return nil, space, err
	}
	if !bytes.HasPrefix(hello, []byte(p.Magic)) {
		return nil, space, ErrStranger
	}
	if _, err := io.ReadFull(c, hello[MagicBytes:]); err != nil {
		return nil, space, err
	}
	copy(space[:], hello[MagicBytes:])
	nonce := make([]byte, NonceBytes)
	_, _ = rand.Read(nonce)
	if _, err := c.Write(nonce); err != nil {
		return nil, space, err
	}
	var theirs [ProofBytes]byte
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return nil, space, err
	}
	key, known := keyOf(space)
	if !known {
		_, _ = rand.Read(key[:]) // a key that nobody has, so that the work is the same
	}
	talk := transcript(hello, nonce)
	if want := p.clientProof(key, talk); !hmac.Equal(want[:], theirs[:]) || !known {
		return nil, space, ErrStranger
	}
	mine := p.serverProof(key, talk)
	if _, err := c.Write(mine[:]); err != nil {
		return nil, space, err
	}
	return p.newSession(c, key, talk, true), space, c.SetDeadline(time.Time{})
}

// MAC returns the HMAC-SHA256 of a label and parts. Labels separate the uses of a key; each label has parts of one length, or one part.
func MAC(key []byte, label string, parts ...[]byte) (sum Key) {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(append([]byte(label), 0)) // writing to a hash does not fail
	for _, p := range parts {
		_, _ = h.Write(p)
	}
	return Key(h.Sum(sum[:0]))
}
