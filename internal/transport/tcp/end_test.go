package tcp

import (
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that ends its links in order loses nothing that it has sent, on whatever connection, also while the other one still sends.
func TestNothingIsLostAtExit(t *testing.T) {
	noLeaks(t)
	const each = 40
	for range 10 {
		a, b := newEnd(t, nil), newEnd(t, nil)
		l, back := a.linkTo(t, b), b.linkOf(t, a)
		a.set(func(int, *Header) ([][]byte, error) { return nil, ErrDrop })
		var sending sync.WaitGroup
		sending.Go(func() {
			for n := uint64(1); back.Send(2, message(n), make([]byte, 1000)) == nil; n++ {
			}
		})
		for n := range uint64(each) {
			for on := 1; on <= 2; on++ {
				require.NoError(t, l.Send(on, message(n+1), make([]byte, 20_000)))
			}
			require.NoError(t, l.Send(control, &Header{Kind: Collect, Group: 9, Number: n + 1}))
		}
		a.Close()
		require.ErrorIs(t, b.awaitLoss(t), io.EOF)
		require.Equal(t, 3*each, b.count())
		sending.Wait()
	}
}

// Closing a node does not wait for a process that does nothing.
func TestCloseWithAStoppedProcess(t *testing.T) {
	noLeaks(t)
	quick := func(c *Config) { c.Timing = fast }
	a, b := newEnd(t, quick), newEnd(t, quick)
	held, slow := make(chan struct{}), make(chan struct{})
	b.set(func(int, *Header) ([][]byte, error) {
		close(held)
		<-slow
		return nil, nil
	})
	l := a.linkTo(t, b)
	require.NoError(t, l.Send(1, message(1)))
	<-held
	a.Close() // returns although b does not end its side
	close(slow)
	require.Error(t, b.awaitLoss(t))
}
