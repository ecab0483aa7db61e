package tcp

import (
	"net"
	"slices"
	"sync"
)

// outboxBytes bounds what waits in an outbox. A longer frame may wait in it alone.
const outboxBytes = 256 << 10

// outbox holds what is to be sent on a connection with TLS, in order. There a write waits where the other process reads nothing, and cannot be left
// in its middle. So one goroutine writes, and senders only copy their frames into the outbox, which is done at once unless it is full.
type outbox struct {
	mu      sync.Mutex
	filled  sync.Cond     // there is something to write, or the end has come
	room    sync.Cond     // the goroutine has taken everything, or the end has come
	waiting []byte        // encoded frames that the goroutine has not taken
	senders int           // that wait for room
	added   uint64        // bytes so far,
	written uint64        // and those of them that were written
	awaited []awaited     // in order
	writing bool          // the goroutine writes what it has taken
	closed  bool          // nothing is added any more, and the goroutine ends when it has written everything
	failed  error         // a write has failed: nothing is written any more
	done    chan struct{} // closed when the goroutine has ended
}

// awaited is what is called when so many bytes were written.
type awaited struct {
	bytes uint64
	call  func()
}

func newOutbox() *outbox {
	o := &outbox{done: make(chan struct{})}
	o.filled.L, o.room.L = &o.mu, &o.mu
	return o
}

// put adds a frame; its payload may be overwritten then. Where the outbox is full, put waits, or reports false without wait; without wait it also
// reports false where others wait for room. The checksum of a frame is 0 within TLS.
func (o *outbox) put(h *Header, payload [][]byte, wait bool) (taken bool, err error) {
	var head [HeaderBytes]byte
	h.Encode(&head)
	size := len(head) + length(payload)
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.failed == nil && !o.closed && (o.full(size) || !wait && o.senders > 0) {
		if !wait {
			return false, nil
		}
		o.senders++
		o.room.Wait()
		o.senders--
	}
	switch {
	case o.failed != nil:
		return false, o.failed
	case o.closed:
		return false, net.ErrClosed
	}
	o.waiting = append(o.waiting, head[:]...)
	for _, p := range payload {
		o.waiting = append(o.waiting, p...)
	}
	o.added += uint64(size)
	o.filled.Signal()
	return true, nil
}

// after calls a function when all that was added until now is written, unless a write fails. The function waits for nothing.
func (o *outbox) after(call func()) {
	o.mu.Lock()
	if o.written < o.added && o.failed == nil {
		o.awaited = append(o.awaited, awaited{o.added, call})
		call = nil
	}
	o.mu.Unlock()
	if call != nil {
		call()
	}
}

// wrote takes note that bytes were written, and returns what is to be called.
// Requires: the lock.
func (o *outbox) wrote(n int) (calls []awaited) {
	o.written += uint64(n)
	due := 0
	for due < len(o.awaited) && o.awaited[due].bytes <= o.written {
		due++
	}
	calls, o.awaited = slices.Clone(o.awaited[:due]), slices.Delete(o.awaited, 0, due)
	return calls
}

// full reports whether there is no room for so many bytes.
// Requires: the lock.
func (o *outbox) full(size int) bool { return len(o.waiting) > 0 && len(o.waiting)+size > outboxBytes }

// empty reports whether everything was written.
func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) == 0 && !o.writing
}

// isWriting reports whether the goroutine writes.
func (o *outbox) isWriting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writing
}

// close lets nobody add anything any more. What is there is still written.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.filled.Broadcast()
	o.room.Broadcast()
}

// run writes what comes until the outbox is closed and empty, or a write fails.
func (o *outbox) run(write func([]byte) (int, error)) error {
	var text []byte
	for {
		o.mu.Lock()
		for len(o.waiting) == 0 && !o.closed {
			o.filled.Wait()
		}
		if len(o.waiting) == 0 {
			o.mu.Unlock()
			return nil
		}
		text, o.waiting = o.waiting, text[:0]
		o.writing = true
		o.room.Broadcast()
		o.mu.Unlock()
		_, err := write(text)
		o.mu.Lock()
		o.writing = false
		var calls []awaited
		if err != nil {
			o.failed, o.waiting, o.awaited = err, nil, nil
			o.room.Broadcast()
		} else {
			calls = o.wrote(len(text))
		}
		o.mu.Unlock()
		if err != nil {
			return err
		}
		for _, a := range calls {
			a.call()
		}
	}
}

// runOutbox is the goroutine that writes to a connection with TLS. An outbox that is closed ends what is sent on the connection.
func (c *conn) runOutbox() {
	var err error
	defer close(c.out.done)
	defer func() {
		if err != nil {
			c.link.lose(err)
			return
		}
		_ = c.tcp.CloseWrite()
	}()
	defer func() { recovered(&err, recover()) }()
	err = c.out.run(c.Write)
}

// queue is send and trySend within TLS.
func (c *conn) queue(h *Header, payload [][]byte, wait bool) (taken bool, err error) {
	if taken, err = c.out.put(h, payload, wait); taken {
		c.sent.Store(c.link.now())
	}
	return taken, err
}
