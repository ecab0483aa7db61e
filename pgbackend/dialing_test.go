package pgbackend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
	"sagecomm/tests/quick"
)

// Another attempt is made as long as one address may still answer, and for a bounded time where no network leads to the
// process.
func TestWhichErrorsOfDialingPass(t *testing.T) {
	dialed := func(err error) error { return fmt.Errorf("10.0.0.2:5: %w", &net.OpError{Op: "dial", Err: err}) }
	of := func(errs ...error) error { return &tcp.DialError{At: errs} }
	slow, refused := dialed(os.ErrDeadlineExceeded), dialed(&os.SyscallError{Syscall: "connect", Err: unix.ECONNREFUSED})
	noNetwork, noHost := dialed(unix.ENETUNREACH), dialed(unix.EHOSTUNREACH)
	secret := fmt.Errorf("10.0.0.2:5: %w", handshake.ErrRefused)
	certificate := fmt.Errorf("10.0.0.2:5: %w", &tcp.CertificateError{Why: &net.OpError{Op: "remote error", Err: tls.AlertError(42)}})
	for _, c := range []struct {
		err         error
		soon, later bool
	}{
		{of(slow), true, true},
		{of(refused), false, false},
		{of(slow, refused), true, true},
		{of(refused, slow), true, true},
		{of(refused, refused), false, false},
		{of(secret), false, false},
		{of(secret, slow), true, true},
		{of(secret, refused), false, false},
		{of(certificate), false, false},
		{of(certificate, secret, refused), false, false},
		{of(certificate, slow), true, true},
		{of(noNetwork), true, false},
		{of(noHost, refused), true, false},
		{of(noHost, slow), true, true},
		{of(errors.Join(of(refused), slow)), true, true},
		{of(errors.New("another setup")), false, false},
	} {
		require.Equal(t, c.soon, mayPass(c.err, 0), "%v", c.err)
		require.Equal(t, c.later, mayPass(c.err, noWayLimit), "%v", c.err)
	}
	g := &Group{name: "g", members: make([]member, 2)}
	process := linkedProcess{at: networkDescription{At: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:5")}}, ranks: []int{1}}
	noFiles := dialed(unix.EMFILE)
	const silent = "the process there is stopped, or the network between drops packets"
	for _, c := range []struct {
		err    error
		status coll.Status
		text   []string
	}{
		{of(refused), coll.PeerFailure, []string{"connect: connection refused"}},
		{of(dialed(unix.ECONNRESET), refused), coll.PeerFailure, []string{"connection reset by peer; 10.0.0.2:5: dial: connect: connection refused"}},
		{of(fmt.Errorf("10.0.0.2:5: %w", io.EOF)), coll.PeerFailure, []string{"EOF"}},
		{errors.Join(context.DeadlineExceeded, of(refused)), coll.PeerFailure, []string{"connection refused"}},
		{errors.Join(context.DeadlineExceeded, of(refused, slow)), coll.Timeout, []string{"it was not made in time: 10.0.0.2:5: dial: connect: connection refused; 10.0.0.2:5: dial: i/o timeout"}},
		{errors.Join(context.DeadlineExceeded, of(noFiles)), coll.Timeout, []string{"it was not made in time: 10.0.0.2:5: dial: too many open files"}},
		{errors.Join(context.DeadlineExceeded, of(noNetwork, slow)), coll.Timeout, []string{"it was not made in time: 10.0.0.2:5: dial: network is unreachable; "}},
		{errors.Join(context.DeadlineExceeded, of(slow)), coll.Timeout, []string{"it was not made in time: " + silent + ": 10.0.0.2:5: dial: i/o timeout"}},
		{context.DeadlineExceeded, coll.Timeout, []string{silent, "10.0.0.2:5: no attempt has ended"}},
		{of(refused, noHost), coll.System, []string{"connection refused; ", "no route to host"}},
		{of(certificate), coll.System, []string{"10.0.0.2:5: "}},
		{errors.Join(context.DeadlineExceeded, of(certificate, slow)), coll.System, []string{"pid 0): 10.0.0.2:5: ", "; 10.0.0.2:5: dial: i/o timeout"}},
	} {
		f := g.noLink(process, c.err)
		require.Equal(t, c.status, f.Status, "%v", c.err)
		for _, text := range append(c.text, "10.0.0.2:5") {
			require.Contains(t, f.Message, text)
		}
		require.NotContains(t, f.Message, "\n")
		require.NotContains(t, f.Message, "context deadline exceeded")
		require.Equal(t, slices.ContainsFunc(c.text, func(text string) bool { return strings.Contains(text, silent) }), strings.Contains(f.Message, silent), f.Message)
	}
}

// dialerTo returns what a rank needs to link to a process that listens at some addresses, and how that is told when it
// fails.
func dialerTo(t *testing.T, at ...net.Listener) (l *groupLinks, to linkedProcess, told func(error) *coll.Failure) {
	t.Helper()
	own, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	id := tcp.Identity{1}
	node, err := tcp.NewNode(tcp.Config{Self: id, Data: 1}, []net.Listener{own})
	require.NoError(t, err)
	t.Cleanup(node.Close)
	require.NoError(t, node.AddKey(handshake.Space{}, handshake.Key{1}))
	to.at.ID = make([]byte, len(id))
	to.at.ID[0], to.ranks = 2, []int{1}
	for _, each := range at {
		to.at.At = append(to.at.At, each.Addr().(*net.TCPAddr).AddrPort())
	}
	g := &Group{name: "g", members: make([]member, 2)}
	return &groupLinks{network: &network{id: id, node: node, dials: make(chan struct{}, 1)}}, to, func(err error) *coll.Failure { return g.noLink(to, err) }
}

// The error of a link that was not made in time says what became of each address.
func TestLinkThatIsNotMadeInTime(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	l, to, told := dialerTo(t, silent)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = l.linkTo(ctx, to, 0, nil)
	f := told(err)
	require.NoError(t, expect(f, coll.Timeout, "it was not made in time: the process there is stopped, or the network between drops packets: "+silent.Addr().String()+": ", "i/o timeout"))
	require.NotContains(t, f.Message, "context deadline exceeded")
	require.NotContains(t, f.Message, "\n")
}

// A process that closes a connection when the secret was proved may have too many strangers, so it is dialed again, a
// few times. A reset is no refusal.
func TestRefusalsAreTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		linger, attempts int
		refused          bool
		atLeast          time.Duration
	}{"closed": {-1, 1 + mostRefusals, true, 0}, "reset": {0, 3, false, 0}, "reset, of a link at first need": {0, 3, false, time.Minute}} {
		t.Run(name, func(t *testing.T) {
			if !c.refused {
				quick.Skip(t, "it waits between attempts")
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			l, to, _ := dialerTo(t, listener)
			ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
			defer cancel()
			attempts := make(chan int, 1)
			go func() {
				n := 0
				defer func() { attempts <- n }()
				for {
					accepted, err := listener.Accept()
					if err != nil {
						return
					}
					if n++; !c.refused && n == c.attempts { // it would be dialed for ever
						cancel()
					}
					_, _ = io.ReadFull(accepted, make([]byte, handshake.HelloBytes))
					_, _ = accepted.Write(make([]byte, handshake.NonceBytes))
					_, _ = io.ReadFull(accepted, make([]byte, handshake.ProofBytes))
					_ = accepted.(*net.TCPConn).SetLinger(c.linger)
					_ = accepted.Close()
				}
			}()
			_, err = l.linkTo(ctx, to, c.atLeast, nil)
			require.Error(t, err)
			require.Equal(t, c.refused, errors.Is(err, handshake.ErrRefused), "%v", err)
			require.Equal(t, !c.refused, errors.Is(err, unix.ECONNRESET), "%v", err)
			require.NoError(t, listener.Close())
			require.Equal(t, c.attempts, <-attempts)
		})
	}
}

// A link at first need is dialed for a while where nobody listens, one of the rendezvous not again. What it holds of
// the dials it gives back.
func TestNobodyListens(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l, to, _ := dialerTo(t, listener)
	require.NoError(t, listener.Close())
	for _, atLeast := range []time.Duration{0, otherWay + otherWay/2} {
		began := time.Now()
		_, err = l.linkTo(t.Context(), to, atLeast, nil)
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		require.GreaterOrEqual(t, time.Since(began), atLeast)
	}
	require.Empty(t, l.network.dials)
}

// Where the rank has left, that ends sooner: who does not listen needs nothing. Where another address does not answer,
// it goes on.
func TestNobodyListensToWhoHasLeft(t *testing.T) {
	quick.Skip(t, "it waits between attempts")
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l, to, _ := dialerTo(t, shut)
	require.NoError(t, shut.Close())
	asked := 0
	ctx, cancel := context.WithTimeout(t.Context(), hangAfter)
	defer cancel()
	_, err = l.linkTo(ctx, to, 10*hangAfter, func() bool { // it leaves while it is dialed
		asked++
		return asked == 2
	})
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	require.NoError(t, ctx.Err())
	require.Equal(t, 2, asked)

	closes, err := net.Listen("tcp", "127.0.0.1:0") // each connection, which is no refusal
	require.NoError(t, err)
	defer func() { _ = closes.Close() }()
	to.at.At = append(to.at.At, closes.Addr().(*net.TCPAddr).AddrPort())
	attempts := 0
	go func() {
		for {
			accepted, err := closes.Accept()
			if err != nil {
				return
			}
			if attempts++; attempts == 2 {
				cancel()
			}
			_ = accepted.(*net.TCPConn).SetLinger(0)
			_ = accepted.Close()
		}
	}()
	_, err = l.linkTo(ctx, to, 10*hangAfter, func() bool { return true })
	require.ErrorIs(t, err, context.Canceled)
}

// Who asks another process for a link stops when the link is not needed any more, also before it has begun.
func TestLinkThatIsNotNeededIsNotAskedFor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	ask := func() {
		asked++
		cancel()
	}
	askForLink(ctx, ask)
	require.Equal(t, 1, asked)
	askForLink(ctx, ask)
	require.Equal(t, 1, asked)
}
