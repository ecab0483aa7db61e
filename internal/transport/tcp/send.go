package tcp

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// send writes a frame. It returns when the kernel has all of it, within TLS when the outbox has it.
func (c *conn) send(h *Header, payload [][]byte) error {
	if c.out != nil {
		_, err := c.queue(h, payload, true)
		return err
	}
	s := &c.sending
	s.Lock()
	defer s.Unlock()
	return c.write(h, payload)
}

// write is send without TLS, for who has the lock.
func (c *conn) write(h *Header, payload [][]byte) error {
	if err := c.flush(); err != nil {
		return err
	}
	out := net.Buffers(c.encode(h, payload))
	_, err := out.WriteTo(c.tcp)
	clear(c.sending.bufs)
	c.sent.Store(c.link.now())
	c.sending.number++
	c.sending.broken = err // a part of the frame may be out
	return err
}

// encode returns the bytes of the next frame without TLS. They are valid as long as the lock of sending is held.
func (c *conn) encode(h *Header, payload [][]byte) [][]byte {
	s := &c.sending
	h.Encode(&s.head)
	s.sum.begin(s.number, &s.head)
	for _, p := range payload {
		if c.sums {
			s.sum.add(p)
		}
	}
	binary.LittleEndian.PutUint32(s.head[sumAt:], s.sum.value())
	s.bufs = append(append(s.bufs[:0], s.head[:]), payload...)
	return s.bufs
}

// flush gives the kernel the rest of a frame.
// Requires: the lock of sending.
func (c *conn) flush() error {
	s := &c.sending
	if s.broken != nil || len(s.rest) == 0 {
		return s.broken
	}
	_, s.broken = c.tcp.Write(s.rest)
	s.rest = nil
	return s.broken
}

// trySend writes a frame if the kernel takes at least its beginning without waiting. The rest is kept, and goes with the next call of
// anybody. It reports whether the frame was taken. Within TLS the outbox takes frames as a whole.
func (c *conn) trySend(h *Header, payload [][]byte) (taken bool, err error) {
	if c.out != nil {
		return c.queue(h, payload, false)
	}
	s := &c.sending
	if !s.TryLock() {
		return false, nil
	}
	defer s.Unlock()
	if err := c.tryFlush(); err != nil || len(s.rest) > 0 {
		return false, err
	}
	if h.Bytes >= longPayload && !c.hasRoom() {
		return false, nil // before the checksum, or a copy of what does not fit, takes time
	}
	bufs := c.encode(h, payload)
	defer clear(s.bufs)
	n, err := c.writeSome(bufs)
	if s.broken = err; err != nil || n == 0 {
		return false, err
	}
	s.number++
	s.kept = s.kept[:0]
	for _, b := range skip(bufs, n) {
		s.kept = append(s.kept, b...)
	}
	s.rest = s.kept
	c.sent.Store(c.link.now())
	return true, nil
}

// hasRoom reports whether a third of the send buffer is free, or the kernel does not tell. To ask by poll would make the kernel wake the goroutine that
// reads as soon as that is so, which takes the processor from the threads that poll.
func (c *conn) hasRoom() (is bool) {
	failed := c.raw.Control(func(fd uintptr) {
		queued, most, err := sendMemory(fd)
		is = err != nil || queued <= most-most/3
	})
	return is || failed != nil
}

// tryFlush gives the kernel what it takes of the rest of a frame.
// Requires: the lock of sending.
func (c *conn) tryFlush() error {
	s := &c.sending
	if s.broken != nil || len(s.rest) == 0 {
		return s.broken
	}
	n, err := c.writeSome([][]byte{s.rest})
	s.rest = s.rest[n:]
	s.broken = err
	return err
}

// writeSome writes without waiting. It returns 0 if the kernel takes nothing.
func (c *conn) writeSome(bufs [][]byte) (n int, err error) {
	failed := c.raw.Control(func(fd uintptr) {
		for {
			n, err = unix.Writev(int(fd), bufs[:min(len(bufs), mostSegments)])
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			n, err = 0, nil
		}
	})
	if failed != nil {
		return 0, failed
	}
	return max(n, 0), err
}

// flushRest sends the rest of a frame that trySend has kept, in a goroutine, where no thread polls. Where somebody else has the
// lock, the goroutine waits for it: who only tries to send may leave the rest behind.
func (c *conn) flushRest() {
	s := &c.sending
	if s.TryLock() {
		kept := len(s.rest) > 0
		s.Unlock()
		if !kept {
			return
		}
	}
	if !s.flusher.CompareAndSwap(false, true) {
		return // one waits for the lock already
	}
	c.link.spawn(func() {
		s.Lock()
		defer s.Unlock()
		s.flusher.Store(false)
		if err := c.flush(); err != nil {
			c.link.lose(err)
		}
	})
}
