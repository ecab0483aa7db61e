package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// errAgain is what a read returns that finds nothing.
var errAgain = errors.New("nothing has come")

// once reads what one system call gives, and handles it. It returns errAgain if there was nothing.
// Requires: the lock of receiving.
func (c *conn) once(read func([][]byte) (int, error)) (err error) {
	defer func() {
		recovered(&err, recover())
		if err != nil && !errors.Is(err, errAgain) {
			c.fail(err) // before somebody else gets the lock
		}
	}()
	r := &c.receiving
	switch {
	case r.failed != nil:
		return r.failed
	case r.over:
		return net.ErrClosed
	}
	if r.from == r.to {
		r.from, r.to = 0, 0
	} else if r.to == len(r.intake) {
		r.to = copy(r.intake, r.intake[r.from:r.to])
		r.from = 0
	}
	if r.pending {
		if err := c.place(); err != nil {
			return &frameError{err}
		}
	}
	r.bufs = append(r.bufs[:0], r.payload[:min(len(r.payload), mostSegments)]...)
	if len(r.payload) <= mostSegments {
		next := r.intake[r.to:]
		if r.rest > 0 && r.header.Bytes >= longPayload { // then intake is empty; the next payload is probably long as well, and is to go to its place
			next = next[:HeaderBytes]
		}
		r.bufs = append(r.bufs, next)
	}
	n, err := read(r.bufs)
	clear(r.bufs)
	if err != nil {
		return err
	}
	c.heard.Store(c.link.now())
	if !c.link.heard.Load() {
		c.link.node.heard(c.link)
	}
	if err := c.handle(n); err != nil {
		return &frameError{err}
	}
	return nil
}

// longPayload is the length from which on payloads are read to their places only. Behind a short one, what comes next is read in the same system
// call.
const longPayload = 16 << 10

// fail ends reading.
// Requires: the lock of receiving.
func (c *conn) fail(err error) {
	if c.receiving.failed == nil {
		c.receiving.failed = err
		close(c.ended)
	}
}

// frameError is why a frame was not accepted, in contrast to the end of a connection.
type frameError struct{ error }

func (e *frameError) Unwrap() error { return e.error }

// ErrDrop is what a receiver returns for a frame that is read and forgotten.
var ErrDrop = errors.New("nobody here waits for it any more")

// errSum is the error of a frame that the network, or a host, has damaged.
var errSum = errors.New("the checksum of a frame is wrong: the network or a host damages data, or a program writes to a buffer that an operation uses")

// handle handles n bytes that were read: first those of a payload, then those in intake.
func (c *conn) handle(n int) error {
	r := &c.receiving
	if r.rest > 0 {
		direct := min(n, r.rest)
		c.filled(direct)
		n -= direct
		if r.rest > 0 {
			return nil
		}
		if err := c.arrived(); err != nil {
			return err
		}
	}
	for r.to += n; r.to-r.from >= HeaderBytes; {
		text := (*[HeaderBytes]byte)(r.intake[r.from:])
		if err := r.header.parse(text, c.index); err != nil {
			return err
		}
		r.told = binary.LittleEndian.Uint32(text[sumAt:])
		if c.plain {
			r.sum.begin(r.number, text)
			r.number++
		}
		r.from += HeaderBytes
		if r.header.Kind == Heartbeat {
			if !c.intact() {
				return errSum
			}
			continue
		}
		if r.pending = r.from == r.to && r.header.Bytes >= longPayload; r.pending {
			return nil // once asks for the place, as late as it can: the receiver may not know it yet
		}
		if err := c.place(); err != nil {
			return err
		}
		for r.rest > 0 && r.from < r.to {
			there := copy(r.payload[0], r.intake[r.from:r.to])
			r.from += there
			c.filled(there)
		}
		if r.rest > 0 {
			return nil
		}
		if err := c.arrived(); err != nil {
			return err
		}
	}
	return nil
}

// place asks where the payload of a frame goes.
func (c *conn) place() (err error) {
	r := &c.receiving
	r.pending = false
	if r.header.Kind.ofLink() {
		r.payload, err = nil, c.acceptProbe(&r.header)
	} else {
		r.payload, err = c.link.node.config.Receiver.Place(c.link, c.index, &r.header)
	}
	r.rest = int(r.header.Bytes)
	if r.dropped = errors.Is(err, ErrDrop); r.dropped {
		if r.scratch == nil && r.rest > 0 {
			r.scratch = make([]byte, MaxMessage)
		}
		r.payload, err = [][]byte{r.scratch[:r.rest]}, nil
	}
	if err == nil && length(r.payload) != r.rest {
		err = fmt.Errorf("internal error: %v of %d bytes was given a place of %d", r.header.Kind, r.rest, length(r.payload))
	}
	if err == nil {
		r.payload = skip(r.payload, 0)
	}
	return err
}

// filled takes note of n bytes that lie at the beginning of the payload's place.
func (c *conn) filled(n int) {
	r := &c.receiving
	r.rest -= n
	if c.sums {
		for left, k := n, 0; left > 0; k++ {
			part := r.payload[k][:min(left, len(r.payload[k]))]
			r.sum.add(part)
			left -= len(part)
		}
	}
	r.payload = skip(r.payload, n)
}

// intact reports whether a frame that is there has the checksum that its header tells.
func (c *conn) intact() bool {
	r := &c.receiving
	if c.plain {
		return r.sum.value() == r.told
	}
	return r.told == 0
}

func (c *conn) arrived() error {
	r := &c.receiving
	r.payload = nil
	if !c.intact() {
		return errSum
	}
	if r.dropped {
		return nil
	}
	if r.header.Kind.ofLink() {
		c.takeProbe(&r.header)
		return nil
	}
	return c.link.node.config.Receiver.Arrived(c.link, c.index, &r.header)
}

// skip returns the list without its first n bytes and without empty slices at its beginning.
func skip(list [][]byte, n int) [][]byte {
	for len(list) > 0 && n >= len(list[0]) {
		n -= len(list[0])
		list = list[1:]
	}
	if n > 0 {
		list[0] = list[0][n:]
	}
	return list
}

func length(list [][]byte) (n int) {
	for _, b := range list {
		n += len(b)
	}
	return n
}

// readv reads from a descriptor, which does not block.
func readv(fd int, bufs [][]byte) (int, error) {
	for {
		n, err := unix.Readv(fd, bufs)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, errAgain
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
