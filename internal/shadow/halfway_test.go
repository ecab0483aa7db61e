package shadow

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// halfway passes on what two processes send each other. Of the first long piece behind arm it passes on one half, and the rest behind goOn.
type halfway struct {
	armed atomic.Bool
	free  chan struct{}
	goOn  func()
}

func (h *halfway) arm() { h.armed.Store(true) }

// pairOverHalfway is pairThatSleeps, with halfway between the two.
func pairOverHalfway(t *testing.T) (a, b *end, h *halfway) {
	t.Helper()
	h = &halfway{free: make(chan struct{})}
	h.goOn = sync.OnceFunc(func() { close(h.free) })
	a, b = pairOfEnds(t, func(e *end) {
		e.Set.sleep = time.Hour
		to := e.at
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		e.at = l.Addr().(*net.TCPAddr).AddrPort()
		t.Cleanup(func() { _ = l.Close(); h.goOn() })
		go h.accept(l, to)
	})
	return a, b, h
}

func (h *halfway) accept(l net.Listener, at netip.AddrPort) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", at.String())
		if err != nil {
			_ = c.Close()
			continue
		}
		ends := []*net.TCPConn{c.(*net.TCPConn), to.(*net.TCPConn)}
		var both sync.WaitGroup
		for i := range ends {
			both.Go(func() { h.pass(ends[i], ends[1-i]) })
		}
		go func() {
			both.Wait()
			_, _ = c.Close(), to.Close()
		}()
	}
}

// pass passes one direction of a connection on until its end.
func (h *halfway) pass(from, to *net.TCPConn) {
	defer func() { _ = to.CloseWrite() }()
	const long = 4 << 10
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil && err != io.EOF {
			_ = to.SetLinger(0)
			return
		}
		rest := buf[:n]
		if n > long && h.armed.CompareAndSwap(true, false) {
			_, failed := to.Write(rest[:n/2])
			<-h.free
			if rest = rest[n/2:]; failed != nil {
				return
			}
		}
		if _, failed := to.Write(rest); failed != nil || err != nil {
			return
		}
	}
}
