package pgbackend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
)

// Another attempt is made as long as one address may still answer, and for a bounded time where no network leads to the process.
func TestWhichErrorsOfDialingPass(t *testing.T) {
	dialed := func(err error) error { return fmt.Errorf("10.0.0.2:5: %w", &net.OpError{Op: "dial", Err: err}) }
	of := func(errs ...error) error { return fmt.Errorf("cannot be reached: %w", errors.Join(errs...)) }
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
	process := linkedProcess{ranks: []int{1}}
	for _, c := range []struct {
		err    error
		status coll.Status
	}{
		{of(refused), coll.PeerFailure},
		{of(dialed(unix.ECONNRESET), refused), coll.PeerFailure},
		{of(io.EOF), coll.PeerFailure},
		{errors.Join(context.DeadlineExceeded, of(refused)), coll.PeerFailure},
		{errors.Join(context.DeadlineExceeded, of(refused, slow)), coll.Timeout},
		{of(refused, noHost), coll.System},
		{of(certificate), coll.System},
		{errors.Join(context.DeadlineExceeded, of(certificate, slow)), coll.System},
	} {
		require.Equal(t, c.status, g.noLink(process, c.err).Status, "%v", c.err)
	}
}
