package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
)

// A process has the keys of several jobs or groups. A link needs one of them, until it is made.
func TestKeys(t *testing.T) {
	noLeaks(t)
	for _, encrypted := range []bool{false, true} {
		change := func(*Config) {}
		if encrypted {
			change = secure(newAuthority(t).settings(t))
		}
		other, otherKey := handshake.Space{9}, handshake.Key{9}
		a, b, c := newEnd(t, change), newEnd(t, change), newEndWith(t, other, otherKey, change)
		_, err := c.dialTo(a)
		require.ErrorIs(t, err, handshake.ErrRefused)
		for range 2 { // two groups use it
			require.NoError(t, a.AddKey(other, otherKey))
		}
		require.ErrorIs(t, a.AddKey(other, testKey), errOtherKey)
		a.RemoveKey(other)
		l := c.linkTo(t, a)
		a.RemoveKey(other)
		require.NoError(t, l.Err())
		_, err = c.Link(t.Context(), b.id, b.at, testSpace)
		require.ErrorContains(t, err, "the key of the link was removed")
		d := newEndWith(t, other, otherKey, change)
		_, err = d.dialTo(a)
		require.ErrorIs(t, err, handshake.ErrRefused)
		b.linkTo(t, a)
	}
}
