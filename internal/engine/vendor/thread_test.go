package vendor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// A call that waits holds up its thread alone, and after a call that has failed no other is made.
func TestThread(t *testing.T) {
	used, let := make(chan struct{}), make(chan struct{})
	thread := NewThread(alone, func() error { close(used); return nil })
	<-used
	thread.Begin(func() error { <-let; return nil })
	idle, err := thread.State()
	require.False(t, idle)
	require.NoError(t, err)
	close(let)
	wrong, over := errors.New("wrong"), make(chan struct{})
	thread.Begin(func() error { close(over); return wrong })
	<-over
	thread.Begin(func() error { t.Error("a call after one that has failed"); return nil })
	thread.End()
	for err == nil {
		idle, err = thread.State()
	}
	require.ErrorIs(t, err, wrong)
	require.False(t, idle)
}

// A call that has failed stays one of those that are left. Otherwise a look for an error before it fails, and a look at the number of
// calls behind that, would take it for a success.
func TestAThreadWhoseCallHasFailed(t *testing.T) {
	wrong := errors.New("wrong")
	thread := NewThread(alone, func() error { return nil })
	thread.Begin(func() error { return wrong })
	thread.End()
	<-thread.Over()
	idle, err := thread.State()
	require.ErrorIs(t, err, wrong)
	require.False(t, idle)
}

// A thread that is stopped in a call makes no other one. What it has to do last comes behind the call, and nobody waits for that.
func TestThreadThatIsStoppedInACall(t *testing.T) {
	in, let, calls := make(chan struct{}), make(chan struct{}), 0
	thread := NewThread(alone, func() error { return nil })
	thread.Begin(func() error { close(in); <-let; calls++; return nil })
	<-in
	thread.Begin(func() error { t.Error("a call behind that which was stopped"); return nil })
	thread.Stop(func() { calls *= 10 })
	require.ErrorIs(t, thread.Stopped(), errEnding)
	select {
	case <-thread.Over():
		t.Error("the call goes on")
	default:
	}
	close(let)
	<-thread.Over()
	require.Equal(t, 10, calls)
}

// Sends to itself go to the recvs from itself in their order.
func TestToItself(t *testing.T) {
	of := func(kind CallKind, from, to uintptr, peer int) Call {
		return Call{Kind: kind, From: from, To: to, Count: 3, Reduction: Reduction{Element: Element{Bytes: 2}}, Peer: peer}
	}
	var copies [][3]uint64
	err := ToItself([]Call{of(Send, 10, 0, 1), of(Send, 20, 0, 0), of(Recv, 0, 30, 1), of(Recv, 0, 40, 0), of(Recv, 0, 50, 1), of(Send, 60, 0, 1)}, 1,
		func(to, from uintptr, bytes uint64) error {
			copies = append(copies, [3]uint64{uint64(to), uint64(from), bytes})
			return nil
		})
	require.NoError(t, err)
	require.Equal(t, [][3]uint64{{30, 10, 6}, {50, 60, 6}}, copies)
}
