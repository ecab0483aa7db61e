package vendor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// failing is a member that is of no use.
type failing struct{ Member }

func (failing) State() (bool, error) { return false, errors.New("remote process exited") }

// failedAt returns an engine that waits for 2.7 s before it makes its group fail, and how that has failed and when.
func failedAt() (e *Engine, failed <-chan error, after func() time.Duration) {
	list, began := make(chan error, 1), time.Now()
	var at time.Duration
	group := alone
	group.ReportWait = 2700 * time.Millisecond
	group.Fail = func(err error) {
		at = time.Since(began)
		list <- err
	}
	return New(joins{}, group, nil, nil, NewPool(), nil), list, func() time.Duration { return at }
}

func watched(e *Engine) *communicator {
	c := &communicator{engine: e, joined: failing{}, stop: make(chan struct{}), current: func(f func() error) error { return f() }}
	go c.watch()
	return c
}

// A report of the library waits for a failure that explains it, and makes the group fail where none comes.
func TestReportsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, failed, after := failedAt()
		watched(e)
		require.EqualError(t, <-failed, "joins: remote process exited")
		require.Equal(t, watchEvery+e.group.ReportWait, after())
	})
	synctest.Test(t, func(t *testing.T) {
		e, failed, after := failedAt()
		e.group.ReportWait = 0
		watched(e)
		require.Error(t, <-failed)
		require.Equal(t, watchEvery, after(), "on one host")
	})
}

// It waits no longer once the group is down, its communicator is closed, or a signal has come.
func TestReportsWaitNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, failed, after := failedAt()
		watched(e)
		time.Sleep(time.Second)
		require.Empty(t, failed)
		e.goDown()
		require.Error(t, <-failed)
		require.Equal(t, time.Second, after())
	})
	synctest.Test(t, func(t *testing.T) {
		e, failed, after := failedAt()
		c := watched(e)
		time.Sleep(time.Second)
		close(c.stop)
		require.Error(t, <-failed)
		require.LessOrEqual(t, after(), time.Second+signalsEvery)
	})
	synctest.Test(t, func(t *testing.T) {
		e, failed, after := failedAt()
		e.report(errors.New("remote process exited"), func() error { return ErrInterrupted })
		require.EqualError(t, <-failed, "remote process exited")
		require.Zero(t, after())
	})
}

// What is no report of the library makes the group fail at once.
func TestOtherErrorsWaitForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{ErrInterrupted, errEnding} {
			e, failed, after := failedAt()
			e.report(err, func() error { return nil })
			require.ErrorIs(t, <-failed, err)
			require.Zero(t, after())
		}
	})
}
