package device

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// A value is made once for each key, and an error is not kept.
func TestOnce(t *testing.T) {
	refused := errors.New("refused")
	calls, why := 0, refused
	var o Once[int, string]
	value := func() (string, error) { calls++; return "made", why }
	_, known, _ := o.Known(1)
	require.False(t, known)
	for range 2 {
		_, err := o.Get(1, value)
		require.ErrorIs(t, err, refused)
		_, known, _ = o.Known(1)
		require.False(t, known)
	}
	require.Equal(t, 2, calls)
	why = nil
	for range 2 {
		v, err := o.Get(1, value)
		require.NoError(t, err)
		require.Equal(t, "made", v)
	}
	require.Equal(t, 3, calls)
	v, known, err := o.Known(1)
	require.True(t, known)
	require.NoError(t, err)
	require.Equal(t, "made", v)
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

var errCameLate = errors.New("another caller's value is over, or was made twice")

// Callers who come while a value is made get what the first one gets, also an error.
func TestOnceWhileItIsMade(t *testing.T) {
	for _, why := range []error{nil, errors.New("refused")} {
		var o Once[int, int]
		began, release := make(chan struct{}), make(chan struct{})
		results := make(chan error, 3)
		go func() {
			_, err := o.Get(1, func() (int, error) { close(began); <-release; return 1, why })
			results <- err
		}()
		<-began
		came := make(chan struct{}, 2)
		go func() {
			came <- struct{}{}
			_, err := o.Get(1, func() (int, error) { return 0, errCameLate })
			results <- err
		}()
		go func() {
			came <- struct{}{}
			_, known, err := o.Known(1)
			if !known {
				err = errCameLate
			}
			results <- err
		}()
		<-came
		<-came
		require.Empty(t, results)
		close(release)
		for range 3 {
			if err := <-results; err == nil || why == nil || !errors.Is(err, errCameLate) {
				require.Equal(t, why, err)
			}
		}
	}
}

// A panic ends the waits for a value, and the next call makes it.
func TestOnceAfterAPanic(t *testing.T) {
	var o Once[int, int]
	waiting := make(chan error, 1)
	require.PanicsWithValue(t, "lost", func() {
		_, _ = o.Get(1, func() (int, error) {
			began := make(chan struct{})
			go func() {
				close(began)
				_, _, err := o.Known(1)
				waiting <- err
			}()
			<-began
			panic("lost")
		})
	})
	if err := <-waiting; err != nil { // nil: it came after the panic
		require.ErrorIs(t, err, errPanicked)
	}
	v, err := o.Get(1, func() (int, error) { return 1, nil })
	require.NoError(t, err)
	require.Equal(t, 1, v)
}
