package device

import (
	"errors"
	"testing"
	"testing/synctest"

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

var errTwice = errors.New("the value is not known, or is made twice")

// Callers who come while a value is made get what the first one gets, also an error.
func TestOnceWhileItIsMade(t *testing.T) {
	for _, why := range []error{nil, errors.New("refused")} {
		synctest.Test(t, func(t *testing.T) {
			var o Once[int, int]
			release, results := make(chan struct{}), make(chan error, 3)
			go func() {
				_, err := o.Get(1, func() (int, error) { <-release; return 1, why })
				results <- err
			}()
			synctest.Wait()
			go func() {
				_, err := o.Get(1, func() (int, error) { return 0, errTwice })
				results <- err
			}()
			go func() {
				_, known, err := o.Known(1)
				if !known {
					err = errTwice
				}
				results <- err
			}()
			synctest.Wait()
			require.Empty(t, results)
			close(release)
			for range 3 {
				require.Equal(t, why, <-results)
			}
		})
	}
}

// A panic ends the waits for a value, and the next call makes it.
func TestOnceAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Once[int, int]
		waiting := make(chan error, 1)
		require.PanicsWithValue(t, "lost", func() {
			_, _ = o.Get(1, func() (int, error) {
				go func() {
					_, _, err := o.Known(1)
					waiting <- err
				}()
				synctest.Wait()
				panic("lost")
			})
		})
		require.ErrorIs(t, <-waiting, errPanicked)
		v, err := o.Get(1, func() (int, error) { return 1, nil })
		require.NoError(t, err)
		require.Equal(t, 1, v)
	})
}
