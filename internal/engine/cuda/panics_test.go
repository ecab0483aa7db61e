package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/engine/vendor"
)

// guarding makes the guard of a member give its panics to panics, and not return from one before let is closed.
func guarding(m *member, panics chan<- any, let <-chan struct{}) {
	m.guard = func(f func()) {
		defer func() {
			if r := recover(); r != nil {
				panics <- r
				<-let
			}
		}()
		f()
	}
}

// A panic while tokens are set makes the group of the member fail, whose tokens are set no more. Those of other groups are, also while that
// group is taken down.
func TestPanicWhileTokensAreSet(t *testing.T) {
	broken, _ := pair(t)
	whole, _ := pair(t)
	panics, let := make(chan any, 10), make(chan struct{})
	for _, m := range []*member{broken[0], whole[0]} {
		guarding(m, panics, let)
		m.captures.released[1].Store(true)
	}
	broken[0].own.memory = nil // a panic follows
	s := tokenSetter{more: make(chan struct{}, 1)}
	s.add(broken[0])
	s.add(whole[0])
	require.ErrorContains(t, (<-panics).(error), "index out of range")
	for range 2 {
		whole[0].own.store(tokenOf(filled, 0), 1, 0) // its stream takes it
		require.Eventually(t, func() bool { return whole[0].own.load(tokenOf(filled, 0), 1) == beyond }, 10*time.Second, time.Millisecond)
	}
	close(let)
	require.Empty(t, panics, "it goes on to panic")
}

// A panic while waits are ended makes the group of the member fail, and the waits are ended on: a peer may still write old values.
func TestPanicWhileWaitsAreEnded(t *testing.T) {
	m, _ := pair(t)
	panics, let := make(chan any, 1), make(chan struct{})
	close(let)
	guarding(m[0], panics, let)
	require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	looks := 0
	m[0].Release(func() bool {
		if looks++; looks > 2 { // on the goroutine
			panic("idle")
		}
		return false
	})
	require.Equal(t, "idle", <-panics)
	require.False(t, m[0].Abort(), "nobody knows whether the stream has ended")
	waitsFor := m[0].newest[filled][1].Load()
	m[0].own.store(filled, 1, waitsFor-1) // late
	require.Eventually(t, func() bool { return m[0].own.load(filled, 1) == waitsFor+beyond }, 10*time.Second, time.Millisecond)
}
