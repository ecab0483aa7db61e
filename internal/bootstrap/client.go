package bootstrap

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"sagecomm/internal/handshake"
)

// TCPStore is the store of a unique id: connections to the [Server] of the process that made the id, one for each call
// that is under way.
type TCPStore struct {
	server      netip.AddrPort
	space       [spaceBytes]byte
	key         [sha256.Size]byte
	descriptors Descriptors
	ctx         context.Context // its end ends connections that are being made
	cancel      context.CancelFunc

	mu     sync.Mutex
	free   []*session
	all    []*session
	broken error // why no call can be made any more
}

var (
	_ ManyGetter = (*TCPStore)(nil)
	_ Lasting    = (*TCPStore)(nil)
)

const (
	// dialTimeout is how long a server is tried that does not answer. It was there when it made the id.
	dialTimeout = 2 * time.Second
	// mostRefusals is how often a server is tried that ends the handshake. A process that is ending does so too, and is
	// gone at the next try; and so does a server that had too many strangers.
	mostRefusals = 5
	// leastPause and mostPause are the first and the longest pause between two tries.
	leastPause, mostPause = 5 * time.Millisecond, 200 * time.Millisecond
	// answerGrace is the time for an answer beyond the time that the request may take.
	answerGrace = 20 * time.Second
)

// ErrGone is the error where the server of an id does not answer, or does not answer any more.
var ErrGone = errors.New("the process that made the unique id: it has ended")

// Dial connects to the server of an id by the deadline. job is the secret of the job, nil without one. If late is not
// nil, a server that is not there yet, or does not have a derived id yet, is tried until the deadline, or until late
// returns why it will not come: Dial returns that. The end of the context ends Dial.
func Dial(ctx context.Context, id ID, job []byte, deadline time.Time, late func() error, d Descriptors) (*TCPStore, error) {
	key := id.key(job)
	soon := time.Now().Add(dialTimeout)
	if late != nil || deadline.Before(soon) {
		soon = deadline
	}
	refusals := 0
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		var why error
		for _, a := range id.Addresses {
			at := netip.AddrPortFrom(a, id.Port)
			s, err := dial(ctx, at, id.Space, key, deadline, d)
			if err == nil {
				return newTCPStore(at, id.Space, key, d, s), nil
			}
			if errors.Is(err, errRefused) && late == nil {
				if refusals++; refusals == mostRefusals {
					return nil, fmt.Errorf("sagecomm: %v: %w", at, err)
				}
			}
			why = errors.Join(why, fmt.Errorf("%v: %w", at, err))
		}
		if late != nil {
			if err := late(); err != nil {
				return nil, err
			}
		}
		if time.Now().Add(pause).After(soon) {
			return nil, fmt.Errorf("sagecomm: no connection to %w, or another network or a firewall is between (SAGECOMM_SOCKET_IFNAME, SAGECOMM_PORT_RANGE): %w", ErrGone, why)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func newTCPStore(server netip.AddrPort, space [spaceBytes]byte, key [sha256.Size]byte, d Descriptors, s *session) *TCPStore {
	t := &TCPStore{server: server, space: space, key: key, descriptors: d, free: []*session{s}, all: []*session{s}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

func dial(ctx context.Context, at netip.AddrPort, space [spaceBytes]byte, key [sha256.Size]byte, deadline time.Time, held Descriptors) (*session, error) {
	if soon := time.Now().Add(handshake.Timeout); soon.Before(deadline) {
		deadline = soon
	}
	d := net.Dialer{Deadline: deadline, KeepAliveConfig: keepAlive}
	connection, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	c := held.hold(connection)
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	s, err := greet(c, space, key, deadline)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return s, nil
}

// errClosed is the error of calls after Close.
var errClosed = errors.New("the store was closed")

// Close ends the connections, and with them all calls.
func (t *TCPStore) Close() { t.end(errClosed) }

// End makes all calls return why.
func (t *TCPStore) End(why error) { _ = t.end(why) }

// end makes all calls return why, unless there was a reason before, and returns the reason.
func (t *TCPStore) end(why error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = why
	}
	t.cancel()
	for _, s := range t.all {
		_ = s.Close()
	}
	return t.broken
}

// dial makes one more connection. Every rank of a group does so at the same moment, for its claimer, and may be the
// stranger too many, so a server that ends the handshake is tried again for dialTimeout. A server that does not listen any
// more has ended.
func (t *TCPStore) dial() (*session, error) {
	soon := time.Now().Add(dialTimeout)
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		s, err := dial(t.ctx, t.server, t.space, t.key, time.Now().Add(handshake.Timeout), t.descriptors)
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) || time.Now().Add(pause).After(soon) {
			return s, err
		}
		select {
		case <-t.ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// take returns a connection that no other call uses.
func (t *TCPStore) take() (*session, error) {
	t.mu.Lock()
	if n := len(t.free); n > 0 || t.broken != nil {
		defer t.mu.Unlock()
		if t.broken != nil {
			return nil, t.broken
		}
		s := t.free[n-1]
		t.free = t.free[:n-1]
		return s, nil
	}
	t.mu.Unlock()
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken != nil {
		_ = s.Close()
		return nil, t.broken
	}
	t.all = append(t.all, s)
	return s, nil
}

// give gives a connection back.
func (t *TCPStore) give(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, s)
}

// Set implements [Store].
func (t *TCPStore) Set(key string, value []byte) error {
	_, err := t.ask(request{ask: askSet, keys: []string{key}, value: value})
	return err
}

// Get implements [Store].
func (t *TCPStore) Get(key string, timeout time.Duration) ([]byte, error) {
	values, err := t.GetMany([]string{key}, timeout)
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// GetMany implements [ManyGetter].
func (t *TCPStore) GetMany(keys []string, timeout time.Duration) ([][]byte, error) {
	for deadline := time.Now().Add(timeout); ; {
		wait := min(max(time.Until(deadline), 0), maxServerWait)
		values, err := t.ask(request{ask: askGet, keys: keys, timeout: wait})
		if !errors.Is(err, ErrTimeout) || !time.Now().Before(deadline) {
			return values, err
		}
	}
}

// Leave tells the server that this rank has met the others. When all ranks have said so, the server drops what they have
// told each other, and takes no further connections for this store. Claimers go on.
func (t *TCPStore) Leave(ranks int) error {
	_, err := t.ask(request{ask: askLeave, ranks: ranks})
	return err
}

// Last implements [Lasting]. A claimer has a connection of its own. The server keeps what was claimed until the last one
// has ended, by Release or with its process.
func (t *TCPStore) Last() (Claimer, error) {
	s, err := t.dial()
	if err != nil {
		return nil, fmt.Errorf("no further connection to the store at %v: %w", t.server, err)
	}
	c := &claimer{session: s, server: t.server}
	return Counted(c.claim, func() { _ = s.Close() }), nil
}

// claimer is the connection of a [Claimer] to the server of an id.
type claimer struct {
	session *session
	server  netip.AddrPort

	turn sync.Mutex // held while a claim is answered
}

func (c *claimer) claim(key string, value []byte) ([]byte, error) {
	frame, err := request{ask: askClaim, keys: []string{key}, value: value}.encode()
	if err != nil {
		return nil, err
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	values, err := exchangeFrames(c.session, frame, 1, 0)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return nil, err
	case err != nil:
		_ = c.session.Close() // the next claim must not take an answer that comes late
		return nil, fmt.Errorf("the store at %v is lost with %w: %w", c.server, ErrGone, err)
	}
	return values[0], nil
}

// ask sends a request and returns the values of its answers.
func (t *TCPStore) ask(r request) ([][]byte, error) {
	frame, err := r.encode()
	if err != nil {
		return nil, err
	}
	c, err := t.take()
	var values [][]byte
	if err == nil {
		values, err = exchangeFrames(c, frame, max(len(r.keys), 1), r.timeout)
	}
	var refused *refusal
	if errors.As(err, new(*GaveUpError)) {
		return nil, t.end(err)
	}
	if err != nil && !errors.Is(err, ErrTimeout) && !errors.As(err, &refused) {
		return nil, t.end(fmt.Errorf("the store at %v is lost with %w: %w", t.server, ErrGone, err))
	}
	t.give(c)
	return values, err
}

// refusal is the server's reason why it does not carry out a request.
type refusal struct{ why string }

func (e *refusal) Error() string { return e.why }

// exchangeFrames sends a frame and receives its n answers.
func exchangeFrames(s *session, frame []byte, n int, wait time.Duration) (values [][]byte, err error) {
	if err := s.SetDeadline(time.Now().Add(wait + answerGrace)); err != nil {
		return nil, err
	}
	if err := s.Send(frame); err != nil {
		return nil, err
	}
	for len(values) < n {
		body, err := s.Receive()
		switch {
		case err != nil:
			return nil, err
		case len(body) == 0:
			return nil, handshake.ErrFrame
		case body[0] == answerOK:
			values = append(values, body[1:])
		case body[0] == answerTimeout && len(values) == 0:
			return nil, ErrTimeout
		case body[0] == answerRefused && len(values) == 0:
			return nil, &refusal{string(body[1:])}
		case body[0] == answerGaveUp && len(values) == 0:
			return nil, readEnd(body[1:])
		default:
			return nil, handshake.ErrFrame
		}
	}
	return values, nil
}
