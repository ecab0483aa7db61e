package pgbackend

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// awaitWait returns when the end of a group waits for operations.
func awaitWait(t *testing.T, g *Group) {
	t.Helper()
	waits := func() bool {
		g.settling.mu.Lock()
		defer g.settling.mu.Unlock()
		return !g.settling.began.IsZero()
	}
	for until := time.Now().Add(opTimeout); !waits(); runtime.Gosched() {
		if time.Now().After(until) {
			t.Error("the end of the group waits for nothing")
			return
		}
	}
}

// lonelySum issues a sum on a device to which no other rank comes.
func lonelySum(t *testing.T, g *Group, d *fakeDevice, timeout time.Duration) (deviceWork, []byte) {
	t.Helper()
	b := d.buffer(4000)
	d.fill(b, contributionBytes(coll.Float32, coll.Sum, g.rank, g.size, 1000))
	late, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Timeout: timeout}, one(b), one(b))
	require.Nil(t, f)
	return late, b
}

// ended is what a goroutine that destroys a group returns.
func ended(t *testing.T, end <-chan error) {
	t.Helper()
	select {
	case err := <-end:
		require.NoError(t, err)
	case <-time.After(hangAfter):
		t.Fatal("the end of the group waits")
	}
}

// endInSlices returns a function that waits as the shim does, and destroys the group.
func endInSlices(wait Wait) func(*Group) error {
	return func(g *Group) error {
		for {
			if again, f := g.Settle(10*time.Millisecond, wait); f != nil {
				return f
			} else if !again {
				return g.Destroy()
			}
		}
	}
}

// A peer that dies while this rank destroys the group makes operations that are left fail with that, at once. So it
// does where this rank has waited in slices before.
func TestDeathWhileOperationsOnDevicesAreLeft(t *testing.T) {
	for name, end := range map[string]func(g *Group) error{
		"destroy":   (*Group).Destroy,
		"in slices": endInSlices(WaitFull),
		"briefly":   endInSlices(WaitBrief),
	} {
		for _, on := range []string{"host", "device"} {
			t.Run(name+"/"+on, func(t *testing.T) {
				impatient(t, hangAfter)
				useNewPool(t)
				devices := fakeDevices(t, 2, 1, true)
				w := newWorld(t, 2)
				g := w.groups[0]
				var finishes func() *coll.Failure
				if on == "device" {
					work, _ := lonelySum(t, g, devices[0], 0)
					finishes = work.finish
				} else {
					work, f := sumAsync(g, 10)
					require.Nil(t, f)
					defer work.Release()
					finishes = func() *coll.Failure { return finish(work) }
				}
				over := make(chan error, 1)
				go func() { over <- end(g) }()
				awaitWait(t, g)
				g.peerDied(1)
				ended(t, over)
				for _, f := range []*coll.Failure{finishes(), g.FirstCause()} {
					require.NoError(t, expect(f, coll.PeerFailure, "rank 1 (host ", " died "))
					require.Equal(t, 1, f.Rank)
				}
			})
		}
	}
}

// Where nothing is left it says nothing: peers that have destroyed the group end as well. An operation that another
// thread issues afterwards fails with it.
func TestDeathBehindTheLastOperation(t *testing.T) {
	for _, issues := range []bool{false, true} {
		useNewPool(t)
		devices := fakeDevices(t, 2, 1, true)
		w := newWorld(t, 2)
		w.each(func(g *Group) error { return asError(sum(g, 10)) })
		g := w.groups[0]
		require.True(t, g.life.move(destroying))
		require.Eventually(t, func() bool { return !g.unfinished() }, hangAfter, time.Millisecond) // a thread may still have the lock
		g.peerDied(1)
		require.Nil(t, g.FirstCause())
		var work deviceWork
		if issues {
			work, _ = lonelySum(t, g, devices[0], 0)
		}
		what, f := g.settle(true)
		require.Empty(t, what)
		require.Nil(t, f)
		g.depart()
		if !issues {
			require.Nil(t, g.FirstCause())
			continue
		}
		require.NoError(t, expect(work.finish(), coll.PeerFailure, "rank 1 (host "))
		require.NoError(t, expect(g.FirstCause(), coll.PeerFailure, "rank 1 (host "))
	}
}

// A peer that has left and ends is no death, however much is left: operations that need it say that it has left.
func TestEndOfAPeerThatHasLeft(t *testing.T) {
	impatient(t, hangAfter)
	w := newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	g := w.groups[0]
	recv, f := g.Issue(coll.Op{Kind: coll.Recv, Root: 1, Async: true, Type: coll.Uint8}, nil, one(make([]byte, 1)))
	require.Nil(t, f)
	defer recv.Release()
	require.NoError(t, w.groups[2].Destroy())
	over := make(chan error, 1)
	go func() { over <- g.Destroy() }()
	awaitWait(t, g)
	require.Equal(t, destroying, g.life.now())
	g.peerDied(2)
	require.Nil(t, g.FirstCause())
	again, f := g.Settle(0, WaitNone) // it ends the wait of the other goroutine
	require.Nil(t, f)
	require.False(t, again)
	ended(t, over)
	require.Nil(t, g.FirstCause())
	require.NoError(t, expect(finish(recv), coll.Aborted, "was destroyed on rank 0"))
}

// A wait that is stopped gives up at once what is left, and names no culprit: peers that need this rank learn that it
// has left.
func TestAWaitThatIsStopped(t *testing.T) {
	impatient(t, hangAfter)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	for _, slices := range []int{0, 1} {
		w := newWorld(t, 2)
		g := w.groups[0]
		work, _ := lonelySum(t, g, devices[0], 0)
		recv, f := w.groups[1].Issue(coll.Op{Kind: coll.Recv, Async: true, Type: coll.Uint8}, nil, one(make([]byte, 1)))
		require.Nil(t, f)
		defer recv.Release()
		for range slices {
			again, f := g.Settle(0, WaitFull)
			require.Nil(t, f)
			require.True(t, again)
		}
		again, f := g.Settle(0, WaitNone)
		require.Nil(t, f)
		require.False(t, again)
		over := make(chan error, 1)
		go func() { over <- g.Destroy() }()
		ended(t, over)
		require.Nil(t, g.FirstCause())
		require.NoError(t, expect(work.finish(), coll.Aborted, "was destroyed on rank 0"))
		require.NoError(t, expect(finish(recv), coll.PeerFailure, "rank 0 (", "has left the group"))
		require.Equal(t, hangAfter, g.process.destroyLimit(), "the next group has all its time")
	}
}

// A Destroy behind a Finish that has given up does not wait again.
func TestDestroyBehindAFinishThatGaveUp(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	w := newWorld(t, 2)
	g := w.groups[0]
	work, f := sumAsync(g, 10)
	require.Nil(t, f)
	defer work.Release()
	require.NoError(t, expect(g.Finish(), coll.Timeout, "rank 0 timed out after ", " at the end of the group"))
	destroyTimeout = hangAfter
	require.True(t, g.settling.isOver(g, WaitFull, false))
	require.NoError(t, g.Destroy())
	require.NoError(t, expect(finish(work), coll.Aborted, "was destroyed on rank 0"))
}

// An operation on a device ends with its own timeout, which names what it has waited for, also where that is longer
// than the group's.
func TestDestroyWaitsAsLongAsAnOperationMayTake(t *testing.T) {
	impatient(t, time.Nanosecond)
	grace := settleGrace
	t.Cleanup(func() { settleGrace = grace })
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	t.Run("the group's", func(t *testing.T) {
		w := newWorldWith(t, 2, 200*time.Millisecond, nil)
		work, _ := lonelySum(t, w.groups[0], devices[0], 0)
		require.NoError(t, w.groups[0].Destroy())
		for _, f := range []*coll.Failure{work.finish(), w.groups[0].FirstCause()} {
			require.NoError(t, expect(f, coll.Timeout, "rank 0 timed out after its timeout of 200ms in all_reduce #1", "not arrived: rank 1 (host "))
		}
	})
	t.Run("its own", func(t *testing.T) {
		w := newWorld(t, 2)
		settleGrace = time.Nanosecond
		g := w.groups[0]
		require.NoError(t, g.SetTimeout(time.Nanosecond))
		late, b := lonelySum(t, g, devices[0], opTimeout)
		over := make(chan error, 1)
		go func() { over <- g.Destroy() }()
		awaitWait(t, g)
		other, _ := lonelySum(t, w.groups[1], devices[1], opTimeout)
		require.Nil(t, other.finish())
		ended(t, over)
		require.Nil(t, late.finish())
		require.True(t, bytes.Equal(b, reducedBytes(coll.Float32, coll.Sum, 2, 1000)))
	})
}

// In a brief wait an operation on a device gets no more time than one on host memory. What is given up names operation
// and rank.
func TestBriefEnd(t *testing.T) {
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	for name, c := range map[string]struct {
		end   func(g *Group) error
		tells bool
	}{
		"end of the process": {func(g *Group) error { return g.destroy(false) }, false},
		"in brief slices": {func(g *Group) error {
			for again := true; again; {
				var f *coll.Failure
				if again, f = g.Settle(time.Millisecond, WaitBrief); f != nil {
					return f
				}
			}
			return g.Destroy()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			impatient(t, 50*time.Millisecond)
			w := newWorld(t, 2)
			g := w.groups[0]
			work, _ := lonelySum(t, g, devices[0], 0)
			over := make(chan error, 1)
			go func() { over <- c.end(g) }()
			ended(t, over)
			require.NoError(t, expect(work.finish(), coll.Aborted, "was destroyed on rank 0"))
			if !c.tells {
				require.Nil(t, g.FirstCause())
				return
			}
			f := g.FirstCause()
			require.NoError(t, expect(f, coll.Timeout, "rank 0 timed out after ", " at the end of the group, with a timeout of 1m0s, in all_reduce #1 ", "; not arrived: rank 1 (host "))
			require.Equal(t, [3]any{1, "all_reduce", uint64(1)}, [3]any{f.Rank, f.Op, f.Sequence})
			_, f = g.Settle(time.Second, WaitFull)
			require.NoError(t, expect(f, coll.Invalid, "the group was destroyed"))
		})
	}
}

// A p2p operation that is given up is named as well.
func TestGivenUpP2PIsNamed(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	w := newWorld(t, 2)
	g := w.groups[0]
	work, _, f := recvOn(g, devices[0], 1, 0, 100)
	require.Nil(t, f)
	for again := true; again; {
		again, f = g.Settle(time.Millisecond, WaitBrief)
		require.Nil(t, f)
	}
	require.NoError(t, g.Destroy())
	require.NotNil(t, work.finish())
	f = g.FirstCause()
	require.NoError(t, expect(f, coll.Timeout, " at the end of the group, with a timeout of 1m0s, in recv ", "rank 1 (host ", "has not completed the matching send"))
	require.Equal(t, [2]any{1, "recv"}, [2]any{f.Rank, f.Op})
}

// Calls of Settle by one thread and the end of the process on another one do not disturb each other.
func TestSettleAgainstTheEndOfTheProcess(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	w := newWorld(t, 2)
	g := w.groups[0]
	work, _ := lonelySum(t, g, devices[0], 0)
	over := make(chan error, 1)
	go func() {
		for {
			if again, _ := g.Settle(10*time.Millisecond, WaitFull); !again {
				over <- nil
				return
			}
		}
	}()
	awaitWait(t, g)
	require.NoError(t, g.destroy(false))
	ended(t, over)
	require.NoError(t, expect(work.finish(), coll.Aborted, "was destroyed on rank 0"))
}
