package vendor

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// failing is a member that is of no use.
type failing struct{ Member }

func (failing) State() (bool, error) { return false, errors.New("remote process exited") }

// failedAt returns an engine that waits for 2.9 s before it makes its group fail, and how that has failed and when.
func failedAt() (e *Engine, failed <-chan error, after func() time.Duration) {
	list, began := make(chan error, 1), time.Now()
	var at time.Duration
	group := alone
	group.Run = new(runner.Group)
	group.ReportWait = 2900 * time.Millisecond
	group.Fail = func(err error) {
		at = time.Since(began)
		if !e.Reports() { // who destroys the group does not wait for it
			err = fmt.Errorf("lost: %w", err)
		}
		list <- err
	}
	e = New(joins{}, group, nil, nil, NewPool(), nil)
	return e, list, func() time.Duration { return at }
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
		time.Sleep(time.Second)
		require.True(t, e.Reports())
		require.EqualError(t, <-failed, "joins: remote process exited")
		synctest.Wait()
		require.False(t, e.Reports())
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
		e.report(reported{errors.New("remote process exited")}, func() error { return ErrInterrupted })
		require.EqualError(t, <-failed, "remote process exited")
		require.Zero(t, after())
	})
}

// unsettled is a member of a library that may always queue one more command.
type unsettled struct{ Member }

func (unsettled) Settled() bool { return false }

// A caller that has been interrupted in a report waits no longer for the library than if the signal had come then.
func TestInterruptedCallers(t *testing.T) {
	for _, c := range []struct{ fails, waits time.Duration }{
		{0, interruptedBound},
		{40 * time.Millisecond, interruptedBound},
		{150 * time.Millisecond, 150 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, _, _ := failedAt()
			e.group.Fail = func(error) { time.Sleep(c.fails) }
			var signal time.Time
			caller := &listener{goOn: func() error {
				require.Zero(t, signal, "looks after the signal")
				if e.Reports() {
					signal = time.Now()
					return ErrInterrupted
				}
				return nil
			}}
			e.report(reported{errors.New("remote process exited")}, caller.look)
			require.False(t, (&communicator{engine: e, joined: unsettled{}}).settles(caller))
			require.WithinDuration(t, signal.Add(c.waits), time.Now(), 10*time.Millisecond)
		})
	}
}

// It waits no longer than until an operation is about to time out.
func TestReportsComeBeforeTimeouts(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, failed, after := failedAt()
			for i := range 3 {
				u, err := e.pool.takeGate(newMemories(t), source{})
				require.NoError(t, err)
				e.pool.limit(uint64(i/2), u, time.Now().Add([]time.Duration{3 * time.Second, 2 * time.Second, time.Second}[i]))
				if over && i < 2 {
					carryOut(u)
				}
			}
			watched(e)
			require.Error(t, <-failed)
			if over {
				require.Equal(t, watchEvery+e.group.ReportWait, after(), "only a lane of another group has an operation")
			} else {
				require.Equal(t, 2*time.Second-timeoutMargin, after())
			}
		})
	}
}

// What is no report of the library makes the group fail at once.
func TestOtherErrorsWaitForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{ErrInterrupted, errEnding, errors.New("out of memory"), reported{fmt.Errorf("ncclAllReduce: %w", Refusal(errors.New("invalid argument")))}} {
			e, failed, after := failedAt()
			e.report(fmt.Errorf("all_reduce: %w", err), func() error { return nil })
			require.ErrorIs(t, <-failed, err)
			require.Zero(t, after())
		}
	})
}

// useless is a device that gives no handle.
type useless struct{ device.Launcher }

func (useless) Handle(device.Stream) (uintptr, error) { return 0, errors.New("the device is lost") }

// refusing is a member that refuses operations.
type refusing struct{ failing }

func (refusing) Do(coll.Op, Buffers, uintptr) error { return errors.New("remote process exited") }

// accepting is a member that is of no use once it has an operation.
type accepting struct{ failing }

func (accepting) Do(coll.Op, Buffers, uintptr) error { return nil }

// Of the errors of an operation, those of the library are reports.
func TestErrorsOfAnOperation(t *testing.T) {
	for _, c := range []struct {
		device device.Launcher
		member Member
		waits  bool
	}{
		{useless{}, refusing{}, false},
		{handles{}, refusing{}, true},
		{handles{}, accepting{}, true},
	} {
		e, _, _ := failedAt()
		at := &communicator{engine: e, joined: c.member, current: func(f func() error) error { return f() }}
		err := at.do(c.device, runner.Call{}, coll.Op{}, Buffers{})
		require.Error(t, err)
		require.Equal(t, c.waits, errors.As(err, new(reported)), "%T %T", c.device, c.member)
		at.ending.Store(true)
		require.False(t, errors.As(at.do(handles{}, runner.Call{}, coll.Op{}, Buffers{}), new(reported)), "a call that the end has overtaken")
	}
}

// handles is a device all of whose streams are one.
type handles struct{ device.Launcher }

func (handles) Handle(device.Stream) (uintptr, error) { return 1, nil }
