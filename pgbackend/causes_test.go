package pgbackend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
)

// length is an incident that is diagnosed as a mismatch.
func length() runner.Incident {
	return runner.Incident{Code: runner.Length, Peer: 0, Got: 4, Op: coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 0}}
}

// A thread of a caller that meets an incident comes back to its caller, long before a verdict that does not come; the
// incident is diagnosed once.
func TestIncidentsLetCallersLookForSignals(t *testing.T) {
	notLate(t, func(t *testing.T) (late bool) {
		a := newFarGroup(t)
		for range 3 {
			began := time.Now()
			a.incident(a.run, length())
			if late = time.Since(began) >= mismatchWait/2; late { // a verdict may have been awaited in vain by now
				break
			}
			require.Nil(t, a.Cause())
		}
		require.Equal(t, coll.Mismatch, (<-a.told).Status)
		require.Eventually(t, func() bool { a.incident(a.run, length()); return a.run.Error() != nil }, hangAfter, time.Millisecond, "it is down")
		require.Equal(t, coll.Mismatch, a.run.Error().Status)
		<-a.declared
		require.Empty(t, a.declared)
		require.NoError(t, a.Destroy())
		return late
	})
}

// The wait for a p2p operation whose peer has left ends with its slice too.
func TestIncidentsOfP2PLetCallersLookForSignals(t *testing.T) {
	notLate(t, func(t *testing.T) (late bool) {
		a := newFarGroup(t)
		work, f := a.Issue(coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 0, Async: true}, nil, one(make([]byte, 8)))
		require.Nil(t, f)
		defer work.Release()
		require.NoError(t, a.peer.Destroy())
		began := time.Now()
		done, _ := work.Wait(50 * time.Millisecond)
		late = time.Since(began) >= deathWait*3/4
		require.True(t, late || !done)
		require.Equal(t, coll.PeerFailure, finish(work).Status)
		require.Equal(t, coll.PeerFailure, a.Cause().Status)
		return late
	})
}

// No operation raises a cause before failure callbacks and the dump are behind, whoever has set the cause, and whoever
// comes later.
func TestNobodyRaisesACauseBeforeItsCallbacks(t *testing.T) {
	setHeadStart(t, hangAfter)
	for name, later := range map[string]func(a *farGroup){
		"a verdict":         func(a *farGroup) { a.takeVerdict(firstOne) },
		"a failure":         func(a *farGroup) { a.declareFailure(firstOne) },
		"the own host word": func(a *farGroup) { a.adopt(firstOne) },
		"an incident": func(a *farGroup) { // a driver comes back until the group is down
			for announced := false; !announced; {
				select {
				case <-a.announced:
					announced = true
				default:
				}
				a.incident(a.run, runner.Incident{})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newFarGroup(t)
			var mu sync.Mutex
			var order []string
			note := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, what)
			}
			require.Nil(t, a.OnFailure(func(*coll.Failure) {
				time.Sleep(20 * time.Millisecond)
				note("told")
			}))
			work, f := sumAsync(a.Group, 10)
			require.Nil(t, f)
			defer work.Release()
			ended := make(chan struct{})
			work.OnDone(func(*coll.Failure) {
				note("raised")
				close(ended)
			})
			require.True(t, a.cause.CompareAndSwap(nil, firstOne)) // another goroutine has set the cause, and is about to announce it
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				later(a)
			}()
			select {
			case <-returned:
				t.Error("returned before the cause was announced")
			case <-ended:
			case <-time.After(20 * time.Millisecond):
			}
			a.announce(firstOne)
			<-returned
			<-ended
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, []string{"told", "raised"}, order)
		})
	}
}

// Of an abort nothing is dumped; of the verdict that takes its place, the flight recorder is.
func TestVerdictBehindAnAbortIsDumped(t *testing.T) {
	dir := t.TempDir()
	a := newFarGroupWith(t, options{"fr_dump": filepath.Join(dir, "rank_")})
	work, f := sumAsync(a.Group, 10)
	require.Nil(t, f)
	a.Abort("enough")
	require.Equal(t, coll.Aborted, finish(work).Status)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, list)
	a.sendCause(t, firstOne)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "rank_1")) // rank 0 finds the verdict in the failure word, and dumps as well
		return err == nil
	}, hangAfter, time.Millisecond)
}

// A panic while the verdict is taken leaves the group down.
func TestPanicInTheVerdictFailsTheGroup(t *testing.T) {
	a := newFarGroup(t)
	work, f := sumAsync(a.Group, 1000)
	require.Nil(t, f)
	a.takeVerdict(nil)
	require.Equal(t, coll.Internal, finish(work).Status)
	require.Contains(t, a.Cause().Message, "internal error on rank 1")
}

// An arbiter that has panicked ends its links, so that nobody waits for its answers, and fails all its groups, also
// where one of them panics.
func TestPanicOfAnArbiterEndsItsLinks(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.members[1].groups = append([]servedGroup{panickingGroup{}}, c.members[1].groups...)
		c.declare(2)
		time.Sleep(time.Millisecond)
		require.Empty(t, c.groups[0].message(), "it waits for member 1")
		c.members[1].push(func() { panic("for the test") })
		time.Sleep(20 * trip)
		c.require("of 2", 20*trip, 0, 2)
		require.Contains(t, c.groups[1].message(), "for the test")
		require.Len(t, c.why, 2)
		require.ErrorContains(t, c.why[0], "internal error in the verdict on group 4d: for the test")
	}, nil, silent, nil)
}

type panickingGroup struct{}

func (panickingGroup) haveLeft([]int) (left, known bool) { return false, false }
func (panickingGroup) linkWanted(int)                    {}
func (panickingGroup) takeVerdict(*coll.Failure)         { panic("for the test, again") }
func (panickingGroup) Panicked(r any) *coll.Failure      { panic(r) }

// Nobody waits for a verdict in a group that has a cause by now.
func TestDeclarerGoesOnWithACauseOfItsOwn(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		caused := make(chan struct{})
		time.AfterFunc(10*trip, func() { close(caused) })
		require.Nil(t, c.members[0].declare(of(0), deathWait, caused))
		require.Equal(t, 10*trip, c.passed())
	}, silent, silent)
}

// The store may hold the cause of an earlier group.
func TestCauseOfAnEarlierGroupIsNoVerdict(t *testing.T) {
	stores := lasting(2)
	for _, key := range []string{"cause", "cause/4c"} {
		_, err := stores[0].Claim(key, []byte(encodeRecord(of(1), 4)))
		require.NoError(t, err)
	}
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		require.Equal(t, "of 0", c.members[0].declare(of(0), deathWait, nil).Message)
	}, stores...)
}

// A member sends what nobody reads once, however often it is asked.
func TestBacklogIsBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.Sleep(5 * trip)
		c.mu.Lock()
		c.full[0][1] = true
		c.mu.Unlock()
		record := []byte(encodeRecord(of(1), 6))
		for i := range 100_000 {
			ask := tcp.Header{Kind: tcp.Declare, Group: 77, From: 2, Taken: 3}
			if i%2 == 1 {
				ask = tcp.Header{Kind: tcp.Collect, Group: 77, From: 2, Taken: 3, Number: 2}
			}
			require.NoError(t, c.members[0].take(1, &ask, record))
			if i%10 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		waiting := make(chan int, 1)
		c.members[0].push(func() { waiting <- len(c.members[0].backlog[1].frames) })
		require.Equal(t, 2, <-waiting, "CAUSE and PROMISE")
	}, nil, nil, nil)
}

// What has come at once is taken as a whole: many lost links cost as much as one, and frames go over the links that are
// left. Meanwhile no frame is kept twice.
func TestWhatComesAtOnceIsTakenAsAWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.Sleep(5 * trip)
		c.mu.Lock()
		for j := range c.members {
			c.full[0][j] = true
		}
		c.mu.Unlock()
		goOn, kinds, twice := make(chan struct{}), make(chan []string, 1), make(chan int, 1)
		a := c.members[0]
		a.push(func() { <-goOn })
		c.lose(0, 4)
		c.noticed(0, 4)
		for i := uint64(1); i < 3; i++ {
			require.NoError(t, a.take(int(i), &tcp.Header{Kind: tcp.Lost, Group: 77, From: uint32(2 * i), Number: 2 * i, Block: 8}, nil))
		}
		a.push(func() { twice <- len(a.member.Sends()) })
		close(goOn)
		require.Zero(t, <-twice, "frames outside of the backlogs")
		synctest.Wait()
		a.push(func() {
			list := make([]string, len(a.backlog))
			for j, b := range a.backlog {
				for _, f := range b.frames {
					if f.Kind == verdict.Cause {
						list[j] += fmt.Sprint("CAUSE for ", f.To)
					}
				}
			}
			kinds <- list
		})
		require.Equal(t, []string{"", "", "", "CAUSE for 4", ""}, <-kinds)
	}, nil, nil, nil, nil, nil)
}

// More frames than members send end the link over which they have come, or are to go.
func TestFloodsEndTheLink(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		record := []byte(encodeRecord(of(1), 4))
		goOn := make(chan struct{})
		a := c.members[0]
		a.push(func() { <-goOn })
		var err error
		n := 0
		for ; err == nil && n < 1000; n++ {
			err = a.take(1, &tcp.Header{Kind: tcp.Declare, Group: 77, From: 2, Taken: 2}, record)
		}
		require.EqualError(t, err, "132 frames of the verdict on group 4d wait, more than 2 members send")
		close(goOn)
		synctest.Wait()
		require.NoError(t, a.take(1, &tcp.Header{Kind: tcp.Declare, Group: 77, From: 2, Taken: 2}, record), "they were handled")
	}, silent, nil)
	inWorld(t, func(t *testing.T, c *arbiterWorld) { // member 0 asks member 2 over member 1 all the time, and never the same
		c.lose(0, 2)
		c.noticed(0, 2)
		c.noticed(2, 0)
		time.Sleep(5 * trip)
		c.mu.Lock()
		c.full[1][2] = true
		c.mu.Unlock()
		for i := range 300 {
			f := of(0)
			f.Sequence = uint64(i)
			require.NoError(t, c.members[1].take(0, &tcp.Header{Kind: tcp.Declare, Group: 77, From: 0, To: 4, Taken: 3}, []byte(encodeRecord(f, 6))))
			synctest.Wait()
		}
		require.Len(t, c.why, 1)
		require.ErrorContains(t, c.why[0], "more frames of the verdict on group 4d are to be sent than 3 members have")
	}, silent, silent, silent)
}

// What a link keeps of a frame is sent, and counts as not sent until then.
func TestRestOfAFrameIsSent(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.half[0][1] = true
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.AfterFunc(105*time.Millisecond, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.full[0][1], c.half[0][1] = false, false
		})
		c.members[0].flush(flushLimit)
		require.Equal(t, 6*arbiterTick, c.passed())
		time.Sleep(2 * trip)
		c.require("of 0", 6*arbiterTick+trip, 0, 1)
	}, lasting(2)...)
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.rest[0][1] = &memberFrame{header: tcp.Header{Kind: tcp.Lost, Group: 77, To: 2, Number: 2}} // of another one who sends
		c.full[0][1] = true
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.AfterFunc(105*time.Millisecond, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.full[0][1], c.rest[0][1] = false, nil
		})
		c.members[0].flush(flushLimit)
		require.Equal(t, 6*arbiterTick, c.passed())
	}, lasting(2)...)
}

// A member that has left reads nothing, so nothing is kept for it; one whose link is lost for good costs a few looks a
// second.
func TestArbitersThatAreDoneSleep(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.full[0][1] = true
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		c.leave(1)
		time.Sleep(arbiterTick)
		before := c.passed()
		c.members[0].flush(flushLimit)
		require.Equal(t, before, c.passed())
	}, lasting(2)...)
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.lose(0, 2)
		c.noticed(0, 2)
		c.noticed(2, 0)
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.Sleep(time.Second)
		before := c.looks.Load()
		time.Sleep(time.Hour)
		require.LessOrEqual(t, c.looks.Load()-before, int64(3*2*(time.Hour/settledTick)), "each of three looks for two others")
	}, lasting(3)...)
}

// stuckLink is one that does not return.
type stuckLink struct {
	goOn  chan struct{}
	stuck atomic.Bool
}

func (l *stuckLink) TrySend(int, *tcp.Header, ...[]byte) (bool, error) {
	l.stuck.Store(true)
	<-l.goOn
	return false, errors.New("the link is lost")
}
func (*stuckLink) AfterSent(int, func())        {}
func (l *stuckLink) TryFlush(int) (bool, error) { return true, nil }
func (l *stuckLink) Break(error)                {}

// A store that takes no part in a decision is worth a line of the log, with the reason: its clone may have failed long
// before.
func TestStoreThatFailsIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		a := newArbiter(arbiterConfig{number: 77, size: 1, lowest: []int{0}, links: []memberLink{nil}, left: func(int) bool { return false }, store: dead, key: "cause",
			info: func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }})
		a.expect()
		a.declare(of(1), 0, nil)
		synctest.Wait()
		require.Equal(t, []string{"the store takes no part in the decision about the first cause of a failure: connection refused"}, lines)
		a.close()
	})
}

// writtenLink takes everything, and has nothing sent before `sent` is called.
type writtenLink struct {
	stuckLink
	sent []func()
}

func (l *writtenLink) TrySend(int, *tcp.Header, ...[]byte) (bool, error) { return true, nil }
func (l *writtenLink) TryFlush(int) (bool, error)                        { return false, nil }
func (l *writtenLink) AfterSent(_ int, call func())                      { l.sent = append(l.sent, call) }

// A link on which a goroutine sends tells when all is sent, so that nobody waits for the next look.
func TestLinkTellsThatAllIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &writtenLink{}
		a := newArbiter(arbiterConfig{number: 77, size: 2, lowest: []int{0, 1}, self: 1, links: []memberLink{l, nil},
			left: func(int) bool { return false }, key: "cause"})
		unsent := func() bool { // as the arbiter's goroutine knows it
			answer := make(chan bool, 1)
			a.push(func() { answer <- a.unsent() })
			return <-answer
		}
		a.expect()
		a.declare(of(1), 0, nil)
		synctest.Wait()
		require.True(t, unsent())
		require.Len(t, l.sent, 1)
		time.Sleep(2 * arbiterTick)
		synctest.Wait()
		require.Len(t, l.sent, 1, "it is asked once for a frame")
		began := time.Now()
		l.sent[0]()
		synctest.Wait()
		require.False(t, unsent())
		require.Zero(t, time.Since(began))
		a.close()
	})
}

// A link that does not return holds up nobody who closes the arbiter for long.
func TestCloseDoesNotWaitForALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &stuckLink{goOn: make(chan struct{})}
		var released atomic.Int64
		a := newArbiter(arbiterConfig{number: 77, size: 2, lowest: []int{0, 1}, self: 1, links: []memberLink{l, nil},
			left: func(int) bool { return false }, store: countedRelease{dead, &released}, key: "cause"})
		a.declare(of(1), 0, nil)
		synctest.Wait()
		require.True(t, l.stuck.Load())
		began := time.Now()
		a.close()
		require.Equal(t, closeLimit, time.Since(began))
		require.EqualValues(t, 1, released.Load())
		close(l.goOn)
		<-a.done
	})
}

// A release that does not end holds up nobody either.
func TestCloseDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		store := bootstrap.Counted(dead.Claim, func() { <-goOn })
		a := newArbiter(arbiterConfig{number: 77, size: 1, lowest: []int{0}, links: []memberLink{nil}, left: func(int) bool { return false }, store: store, key: "cause"})
		began := time.Now()
		a.close()
		require.Equal(t, 500*time.Millisecond, time.Since(began))
		close(goOn)
	})
}
