package pgbackend

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// In these tests rank 1 of a group is as if rank 0 was on another host: an arbiter decides, whose other member is the
// test.

// otherMember is the link to member 0, which does what the test wants.
type otherMember struct{ declared chan string }

func (m otherMember) TrySend(_ int, h *tcp.Header, payload ...[]byte) (bool, error) {
	if h.Kind == tcp.Declare {
		m.declared <- string(payload[0])
	}
	return true, nil
}

func (otherMember) AfterSent(int, func())      {}
func (otherMember) TryFlush(int) (bool, error) { return true, nil }
func (m otherMember) Break(why error)          { m.declared <- why.Error() }

// farGroup is a group with an arbiter.
type farGroup struct {
	*Group
	peer     *Group             // rank 0
	declared chan string        // records of failures that rank 1 declares
	recaused atomic.Int64       // lanes of which the cause was replaced
	told     chan *coll.Failure // by the failure callback
	released atomic.Int64       // of the store
}

type countedRelease struct {
	claimerFunc
	n *atomic.Int64
}

func (c countedRelease) Release() { c.n.Add(1) }

func newFarGroup(t *testing.T) *farGroup {
	t.Helper()
	return newFarGroupWith(t, nil)
}

func newFarGroupWith(t *testing.T, o options) *farGroup {
	t.Helper()
	w := newWorldWith(t, 2, opTimeout, o)
	a := &farGroup{Group: w.groups[1], peer: w.groups[0], declared: make(chan string, 10), told: make(chan *coll.Failure, 10)}
	a.recause = func(run *runner.Group, f *coll.Failure) {
		if run != a.run || f != a.Cause() {
			t.Errorf("%v of %v", f, run)
		}
		a.recaused.Add(1)
	}
	a.arbiter = newArbiter(arbiterConfig{number: 77, size: 2, lowest: []int{0, 1}, self: 1, links: []memberLink{otherMember{a.declared}, nil},
		left: func(int) bool { return false }, store: countedRelease{dead, &a.released}, key: "cause"})
	a.arbiter.serve(a.Group)
	require.Nil(t, a.OnFailure(func(f *coll.Failure) { a.told <- f }))
	return a
}

// sendCause lets member 0 send CAUSE.
func (a *farGroup) sendCause(t *testing.T, f *coll.Failure) {
	t.Helper()
	if err := a.arbiter.take(0, &tcp.Header{Kind: tcp.Cause, Group: 77, To: 1, Number: 1, Taken: 2}, []byte(encodeRecord(f, 2))); err != nil {
		t.Error(err)
	}
}

var firstOne = &coll.Failure{Status: coll.System, Rank: 0, Message: "sagecomm: the first one"}

// An abort raises by itself after 50 ms, and the verdict takes the place of its cause, once. Failure callbacks run
// once.
func TestVerdictReplacesAnOwnCauseOnce(t *testing.T) {
	a := newFarGroup(t)
	work, f := sumAsync(a.Group, 1000)
	require.Nil(t, f)
	began := time.Now()
	a.Abort("enough")
	require.GreaterOrEqual(t, time.Since(began), abortWait)
	require.Equal(t, coll.Aborted, finish(work).Status)
	own := a.Cause()
	require.Equal(t, coll.Aborted, own.Status)
	require.Equal(t, own, <-a.told)
	require.Nil(t, a.run.FirstCause(), "nobody else has heard of it")
	declared, err := decodeRecord(<-a.declared, 2)
	require.NoError(t, err)
	require.Equal(t, own.Message, declared.Message)

	a.declareFailure(&coll.Failure{Status: coll.PeerFailure, Rank: 0, Message: "too late"}) // returns at once
	require.Equal(t, own, a.Cause())

	a.sendCause(t, firstOne)
	require.Eventually(t, func() bool { return a.recaused.Load() == 1 }, hangAfter, time.Millisecond)
	require.Equal(t, firstOne.Message, a.Cause().Message)
	require.Equal(t, firstOne.Message, a.run.FirstCause().Message)
	require.Equal(t, firstOne.Message, a.failed().Message)
	a.takeVerdict(own)
	require.Equal(t, firstOne.Message, a.Cause().Message)
	require.NoError(t, a.Destroy())
	require.EqualValues(t, 1, a.recaused.Load())
	require.EqualValues(t, 1, a.released.Load())
	require.Empty(t, a.told)
}

// A verdict in time is the only cause.
func TestVerdictInTimeIsTheCause(t *testing.T) {
	a := newFarGroup(t)
	go func() {
		<-a.declared
		a.sendCause(t, firstOne)
	}()
	a.declareFailure(&coll.Failure{Status: coll.PeerFailure, Rank: 0, Message: "of rank 1"})
	require.Equal(t, firstOne.Message, a.Cause().Message)
	require.Equal(t, firstOne.Message, (<-a.told).Message)
	require.Zero(t, a.recaused.Load())
}

// A failure of others takes the group down here.
func TestVerdictOnFailuresOfOthers(t *testing.T) {
	a := newFarGroup(t)
	work, f := sumAsync(a.Group, 1000)
	require.Nil(t, f)
	a.sendCause(t, firstOne)
	require.Equal(t, firstOne.Message, finish(work).Message)
	require.Equal(t, firstOne.Message, (<-a.told).Message)
	require.Zero(t, a.recaused.Load())
}

// The verdict does not replace the cause of a group that is destroyed.
func TestNoVerdictOnADestroyedGroup(t *testing.T) {
	a := newFarGroup(t)
	gone := a.destroyedHere()
	require.True(t, a.cause.CompareAndSwap(nil, gone)) // as Destroy does
	close(a.announced)
	a.declareFailure(&coll.Failure{Status: coll.PeerFailure, Rank: 0, Message: "too late"})
	a.takeVerdict(firstOne)
	require.Equal(t, gone, a.Cause())
	require.NoError(t, a.Destroy())
	a.takeVerdict(firstOne)
	require.Zero(t, a.recaused.Load())
}

// A panic of the arbiter fails the group, which waits for no verdict then.
func TestPanicOfAnArbiterFailsTheGroup(t *testing.T) {
	a := newFarGroup(t)
	a.arbiter.push(func() { panic("for the test") })
	require.Equal(t, coll.Internal, (<-a.told).Status)
	require.Contains(t, a.Cause().Message, "for the test")
	require.NoError(t, a.Destroy())
	require.EqualValues(t, 1, a.released.Load())
}

// What is to be raised soon waits shortly: an abort within 100 ms, a timeout or mismatch within 1 s, what a thread of a
// caller declares within the
// 200 ms of Ctrl-C. A death has 3 s, and is noticed after 2 s at the latest.
func TestWaitsBeforeOwnCauses(t *testing.T) {
	for status, most := range map[coll.Status]time.Duration{coll.Aborted: 50 * time.Millisecond, coll.Timeout: 50 * time.Millisecond,
		coll.PeerFailure: 750*time.Millisecond - headStart, coll.Mismatch: 800*time.Millisecond - headStart, // 0.2 s to ask for states
		coll.System: 200*time.Millisecond - headStart, coll.Internal: 200*time.Millisecond - headStart} {
		require.LessOrEqual(t, verdictWait(status), most, "%v", status)
	}
}
