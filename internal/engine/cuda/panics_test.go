package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/engine/vendor"
)

// A panic while tokens are set, or while waits are ended, makes the group of the member fail, and tokens of other groups are set on.
func TestPanicsOfEndings(t *testing.T) {
	m, _ := pair(t)
	panics := make(chan any, 1)
	m[0].guard = func(f func()) {
		defer func() {
			if r := recover(); r != nil {
				panics <- r
			}
		}()
		f()
	}
	m[0].captures.released[1].Store(true)
	m[0].own.memory = nil // a panic follows
	require.False(t, m[0].setTokensGuarded())
	require.ErrorContains(t, (<-panics).(error), "index out of range")
	require.False(t, m[0].setTokensGuarded())
	require.Empty(t, panics, "it goes on to panic")

	n, _ := pair(t)
	n[0].guard = m[0].guard
	require.NoError(t, n[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	looks := 0
	n[0].Release(func() bool {
		if looks++; looks > 2 { // on the goroutine
			panic("idle")
		}
		return false
	})
	require.Equal(t, "idle", <-panics)
	require.False(t, n[0].Abort(), "nobody knows whether the stream has ended")
}
