package shadow

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// In these tests ranks end what they want of a link that is not there.

// A rank that has only asked, or waited, waits for no link when it leaves. One that may have published something does.
func TestLeaveBehindAQuestion(t *testing.T) {
	for _, c := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		w := newApart(t)
		polls, owes := c[0], c[1]
		if polls {
			require.False(t, w.a.pair.Poll())
		} else {
			w.a.Ask(w.a.pair, nil)
		}
		require.True(t, w.wants())
		if owes {
			require.False(t, w.a.pair.Open())
		}
		w.a.leave()
		require.Equal(t, owes, w.a.AwaitsLinks())
		if !owes {
			require.True(t, w.a.Flush(soon))
			w.eventually(w.a.ended)
			continue
		}
		require.False(t, w.a.FlushWithin(soon, time.Millisecond))
		flushed := make(chan bool, 1)
		go func() { flushed <- w.a.FlushWithin(soon, soon) }() // the link may be there before it looks
		l, _ := w.link()
		w.a.Meet(l, 5, 1)
		require.True(t, <-flushed)
		w.eventually(func() bool { return w.b.remoteLeft() == 9 })
		require.False(t, w.a.AwaitsLinks())
	}
}

// A rank whose group has failed waits for no link, and nobody is told of a loss. It answers where the other end makes one.
func TestForgo(t *testing.T) {
	for _, linked := range []bool{false, true} {
		w := newApart(t)
		require.False(t, w.a.pair.Open())
		w.a.Forgo(6, 0)
		w.a.Forgo(5, 1)
		w.a.ForgoOne(6, w.b.id, 0)
		w.a.ForgoOne(5, w.a.id, 0)
		w.a.ForgoOne(5, w.b.id, 1)
		require.True(t, w.wants())
		if linked {
			w.a.Forgo(5, 0)
		} else {
			w.a.ForgoOne(5, w.b.id, 0)
		}
		require.False(t, w.wants())
		if linked {
			var stated atomic.Bool
			w.b.pair.Stated = func() { stated.Store(true) }
			w.b.Ask(w.b.pair, nil)
			_, l := w.link()
			w.b.Meet(l, 5, 0)
			w.eventually(stated.Load)
			w.b.leave()
			w.b.pair.Detach()
			w.a.pair.Detach()
		}
		w.a.leave()
		require.False(t, w.a.AwaitsLinks())
		require.True(t, w.a.Flush(soon))
		w.a.pair.Wake()
		w.eventually(w.a.ended)
		require.Zero(t, w.a.told.Load())
	}
}
