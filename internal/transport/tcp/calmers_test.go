package tcp

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Threads that push and poll, and stop and begin again, leave no count behind, however the link ends meanwhile. Where it goes on, its goroutine is
// woken again.
func TestThreadsThatPollAreCountedBack(t *testing.T) {
	for name, end := range map[string]func(a, b *end, there *Link){
		"the link goes on":       nil,
		"this process ends":      func(a, _ *end, _ *Link) { a.Close() },
		"the other process ends": func(_, b *end, _ *Link) { b.Close() },
		"the link breaks":        func(_, _ *end, there *Link) { there.Break(errors.New("for the test")) },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			a, b := newEnd(t, nil), newEnd(t, nil)
			there, back := a.linkTo(t, b), b.linkOf(t, a)
			var stop atomic.Bool
			var rounds, sent atomic.Int64
			var threads sync.WaitGroup
			for range 3 {
				for _, l := range []*Link{there, back} {
					threads.Go(func() {
						for !stop.Load() {
							l.Calm(true)
							for range 5 {
								if taken, err := l.Push(1, message(1), make([]byte, 3000)); err == nil && taken && l == there {
									sent.Add(1)
								}
								l.PollData()
							}
							l.Calm(false)
							rounds.Add(1)
						}
					})
				}
			}
			goOn := func() {
				from := rounds.Load()
				require.Eventually(t, func() bool { return rounds.Load() > from+50 }, soon, time.Millisecond)
			}
			goOn()
			if end != nil {
				end(a, b, there)
				require.Eventually(t, func() bool { return there.Err() != nil && back.Err() != nil }, soon, time.Millisecond)
				goOn()
			}
			stop.Store(true)
			threads.Wait()
			for _, l := range []*Link{there, back} {
				for _, c := range l.conns {
					require.Zero(t, c.calmers.Load(), "connection %d", c.index)
				}
			}
			if end == nil {
				require.NoError(t, there.Send(1, message(2)))
				b.await(t, int(sent.Load())+1)
			}
		})
	}
}
