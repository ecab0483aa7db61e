package vendor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

var (
	errRemote = errors.New("remote process exited")
	errDied   = errors.New("rank 1 died")
)

// failsToJoin is a library one of whose calls in a join fails: Join itself with why, or the look how far it is.
type failsToJoin struct {
	Library
	why error
}

func (failsToJoin) Name() string           { return "joins" }
func (failsToJoin) NewID() ([]byte, error) { return []byte{1}, nil }
func (f failsToJoin) Join([]byte, int, int, Group) (Communicator, error) {
	return unjoined{}, f.why
}

// unjoined is a communicator that is of no use.
type unjoined struct{ Communicator }

func (unjoined) State() (bool, error) { return false, errRemote }
func (unjoined) Abort() bool          { return true }

// joinBeside makes rank 0's side of a communicator whose library fails. Rank 1 has told that it has joined, and has died behind that if dies is
// not 0: the group is down so long later. It returns the reasons with which the group has settled, if it has, how long that took, and the error.
func joinBeside(method Method, timeout, dies time.Duration) (settled []string, took time.Duration, err error) {
	var e *Engine
	group := alone
	group.Run, group.Size, group.ReportWait = new(runner.Group), 2, 200*time.Millisecond
	group.Timeout = func() time.Duration { return timeout }
	group.Exchange = func(purpose string, mine []byte) ([][]byte, error) {
		switch {
		case e.down.Load():
			return nil, errDied
		case purpose == "join of joins":
			return [][]byte{mine, []byte(`{"joined":true}`)}, nil
		}
		return [][]byte{mine, []byte(`{"device":"1"}`)}, nil
	}
	group.Unique = func(mine []byte) ([][]byte, error) { return [][]byte{mine, nil}, nil }
	group.Settled = func(reasons []string, failed bool) error {
		settled = reasons
		return errors.New("without the library")
	}
	others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
	e = New(method, group, others, others, NewPool(), nil)
	if dies > 0 {
		time.AfterFunc(dies, func() { e.goDown() })
	}
	began := time.Now()
	m := &making{done: make(chan struct{})}
	c := &communicator{engine: e, ended: make(chan struct{}), stop: make(chan struct{}), current: func(f func() error) error { return f() }}
	e.make(m, c, coll.Device{}, Seat{}, false)
	return settled, time.Since(began), m.err
}

// A library may notice that a rank has died in a join before this process does, and that rank may have told by then that it has joined. The death
// is the error of the join: no rank would be at fault who has only seen it. Where there is no death, the error of the library is told, no more than
// ReportWait later. The test fails if the error is told at once.
func TestAnErrorInAJoinWaitsForADeath(t *testing.T) {
	for name, method := range map[string]Method{"in the call": Calls(failsToJoin{why: errRemote}), "behind the call": Calls(failsToJoin{})} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settled, took, err := joinBeside(method, time.Minute, 150*time.Millisecond)
				require.ErrorIs(t, err, errDied)
				require.Nil(t, settled)
				require.Equal(t, 150*time.Millisecond, took)
			})
			synctest.Test(t, func(t *testing.T) {
				settled, took, err := joinBeside(method, time.Minute, 0)
				require.EqualError(t, err, "without the library")
				require.Equal(t, []string{errRemote.Error(), ""}, settled)
				require.Equal(t, 200*time.Millisecond, took)
			})
			synctest.Test(t, func(t *testing.T) { // the peers' exchange has the timeout of the group
				settled, took, _ := joinBeside(method, timeoutMargin+50*time.Millisecond, 0)
				require.Equal(t, []string{errRemote.Error(), ""}, settled)
				require.Equal(t, 50*time.Millisecond, took)
			})
		})
	}
}

// Reasons that no other process causes are told at once.
func TestReasonsOfAJoinThatWaitForNothing(t *testing.T) {
	for name, method := range map[string]Method{
		"of this process":    joins{why: errors.New("out of memory")},
		"a call was refused": Calls(failsToJoin{why: Refusal(errors.New("invalid argument"))}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settled, took, _ := joinBeside(method, time.Minute, 0)
				require.NotEmpty(t, settled[0])
				require.Zero(t, took)
			})
		})
	}
}
