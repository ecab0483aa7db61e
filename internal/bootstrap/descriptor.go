package bootstrap

import (
	"net"
	"sync"

	"sagecomm/internal/handshake"
)

// Descriptors are called for each descriptor of a [Server] or a [TCPStore], after it was made and before it is closed, so
// that forked children can close it: a connection that a child keeps does not end with the process. They may be nil.
type Descriptors struct{ Opened, Closing func(fd uintptr) }

// held is a connection whose descriptor forked children close.
type held struct {
	net.Conn
	closing func(fd uintptr)
	once    sync.Once
	err     error
}

func (d Descriptors) hold(c net.Conn) *held {
	handshake.WithDescriptor(c, d.Opened)
	return &held{Conn: c, closing: d.Closing}
}

// Close may be called more than once.
func (h *held) Close() error {
	h.once.Do(func() {
		handshake.WithDescriptor(h.Conn, h.closing)
		h.err = h.Conn.Close()
	})
	return h.err
}
