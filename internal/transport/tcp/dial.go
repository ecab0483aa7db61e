package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
)

// dial makes all connections of a link.
func (n *Node) dial(ctx context.Context, id Identity, at []netip.AddrPort, key handshake.Space) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.dials, cancel)()
	i := introduction{from: n.config.Self, to: id, attempt: n.attempts.Add(1), data: uint8(n.config.Data), checksums: n.config.Checksums, machine: n.config.Machine}
	sums := false
	conns, raws := make([]net.Conn, n.config.Data+1), make([]*net.TCPConn, n.config.Data+1)
	defer func() {
		for _, c := range raws {
			if err != nil && c != nil {
				n.close(c)
			}
		}
	}()
	for k := range conns {
		if n.has(id) { // the other process has made one meanwhile
			return errCrossed
		}
		i.index = uint8(k)
		var why []error
		for a, address := range at {
			if conns[k], raws[k], sums, err = n.dialOne(ctx, address, i, key); err == nil {
				at = at[a : a+1] // all connections of a link go to one address
				break
			}
			if errors.Is(err, errCrossed) {
				return err
			}
			why = append(why, fmt.Errorf("%v: %w", address, err))
		}
		if raws[k] == nil {
			return &DialError{why, ctx.Err()}
		}
	}
	return n.up(id, conns, raws, sums, nil)
}

// DialError is why a link was not made.
type DialError struct {
	At    []error // of each address, with which its text begins
	Ended error   // of the context; nil if it goes on
}

// Error implements error, in one line.
func (e *DialError) Error() string {
	text := "sagecomm: "
	switch certificate := (*CertificateError)(nil); {
	case errors.As(e, &certificate), starved(e):
	case errors.Is(e, handshake.ErrRefused):
		text += "the process there has another secret, or has closed the connection; set SAGECOMM_SECRET_FILE or SAGECOMM_SECRET to the same secret on all ranks, or on none: "
	default:
		text += "the process there has ended, or cannot be reached; let firewalls between the hosts pass the ports of SAGECOMM_PORT_RANGE, or set SAGECOMM_SOCKET_IFNAME to a network that joins them: "
	}
	for i, each := range e.At {
		if i > 0 {
			text += "; "
		}
		text += each.Error()
	}
	return text
}

// Unwrap returns all errors.
func (e *DialError) Unwrap() []error {
	if e.Ended != nil {
		return append(slices.Clone(e.At), e.Ended)
	}
	return e.At
}

// starved reports whether there was no descriptor for a connection.
func starved(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// errNoAnswer is the error of an address at which the time for the handshake is up.
var errNoAnswer = fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)

// dialOne makes one connection. sums: payloads have checksums on it, as on all others of the link.
func (n *Node) dialOne(ctx context.Context, at netip.AddrPort, i introduction, name handshake.Space) (c net.Conn, raw *net.TCPConn, sums bool, err error) {
	key, known := n.keys.of(name)
	if !known {
		return nil, nil, false, errors.New("internal error: the key of the link was removed")
	}
	ctx, cancel := context.WithTimeout(ctx, n.config.Timing.Greeting)
	defer cancel()
	plain, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", at.String())
	if starved(err) {
		err = fmt.Errorf("%w; let this process open more files (ulimit -n)", err)
	}
	if err != nil {
		return nil, nil, false, err
	}
	own := plain.(*net.TCPConn)
	n.opened(own)
	stop := context.AfterFunc(ctx, func() { n.close(own) })
	defer func() {
		if !stop() && (err == nil || errors.Is(err, net.ErrClosed)) {
			err = ctx.Err()
		}
		if err == context.DeadlineExceeded {
			err = errNoAnswer
		}
		if err != nil {
			n.close(own)
			c, raw = nil, nil
		}
	}()
	deadline, _ := ctx.Deadline()
	c = plain
	limit := &bounded{Conn: plain, left: -1}
	if n.config.TLS != nil {
		if _, err = linkProtocol.Greet(plain, name, key, deadline); err != nil {
			return nil, nil, false, err
		}
		// A handshake with the context would close the connection itself when that ends, without a call of Closing.
		if err = plain.SetDeadline(deadline); err != nil {
			return nil, nil, false, err
		}
		limit.left = maxBetween // who has the secret, and no certificate, is not read for longer
		secure := tls.Client(limit, n.config.TLS)
		if err = secure.Handshake(); err != nil {
			return nil, nil, false, asCertificateError(err)
		}
		if key, err = bound(key, secure); err != nil {
			return nil, nil, false, err
		}
		c = secure
	}
	s, err := linkProtocol.Greet(c, name, key, deadline)
	if err != nil {
		return nil, nil, false, asCertificateError(err) // the other process verifies the certificate of this one behind the handshake of TLS
	}
	limit.left = -1
	if err = c.SetDeadline(deadline); err != nil {
		return nil, nil, false, err
	}
	i.here, i.there = endpointOf(unmapped(own.LocalAddr())), endpointOf(unmapped(own.RemoteAddr()))
	if err = s.Send(i.encode()); err != nil {
		return nil, nil, false, err
	}
	answer, err := s.Receive()
	switch {
	case err != nil:
	case bytes.Equal(answer, []byte{admitted}), bytes.Equal(answer, []byte{admittedBare}):
		sums = answer[0] == admitted
		err = c.SetDeadline(time.Time{})
	case bytes.Equal(answer, []byte{crossed}):
		err = errCrossed
	case bytes.Equal(answer, []byte{otherSetup}):
		err = errors.New("the other process has another number of data connections: use the same settings on all ranks")
	case bytes.Equal(answer, []byte{otherProcess}):
		err = errors.New("another process of the job listens there than the one that is looked for, which has ended: start the job anew")
	case bytes.Equal(answer, []byte{lostBefore}):
		err = errors.New("the link between the two processes was lost before, and is not made again: start both anew")
	default:
		err = errors.New("the other process has closed its links, or has had a later attempt: its log says why it ended")
	}
	return c, own, sums, err
}
