package device

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// A value is made once for each key, and an error is kept unless the next call is to try again.
func TestOnce(t *testing.T) {
	refused := errors.New("refused")
	for _, retries := range []bool{false, true} {
		calls, why := 0, refused
		o := Once[int, string]{Retries: retries}
		value := func() (string, error) { calls++; return "made", why }
		for range 2 {
			_, err := o.Get(1, value)
			require.ErrorIs(t, err, refused)
		}
		want := 1
		if retries {
			want = 2
		}
		require.Equal(t, want, calls)
		why = nil
		for range 2 {
			v, err := o.Get(2, value)
			require.NoError(t, err)
			require.Equal(t, "made", v)
		}
		require.Equal(t, want+1, calls)
	}
}

// A value that takes long keeps nobody who wants another one.
func TestOnceKeepsNobody(t *testing.T) {
	var o Once[int, int]
	release, done := make(chan struct{}), make(chan struct{})
	began := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = o.Get(1, func() (int, error) { close(began); <-release; return 1, nil })
	}()
	<-began
	v, err := o.Get(2, func() (int, error) { return 2, nil })
	require.NoError(t, err)
	require.Equal(t, 2, v)
	close(release)
	<-done
}
