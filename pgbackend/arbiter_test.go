package pgbackend

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// The store decides between failures that are declared at the same time, at once, and tells those that have none.
func TestVerdictOfTheStore(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		var got [3]*coll.Failure
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() { got[i] = c.members[i].declare(of(i), deathWait, nil) })
		}
		all.Wait()
		time.Sleep(2 * trip)
		require.NotNil(t, got[0])
		for i := range got {
			require.Equal(t, got[0], got[i])
		}
		c.require(got[0].Message, 2*trip, 0, 1, 2, 3)
		require.Equal(t, got[0], c.members[3].declare(of(3), deathWait, nil), "too late")
	}, lasting(4)...)
}

// Without an answer of the store a failure is decided after 0.5 s and a round trip where all declare at once, and after
// 1.5 s and four trips where only one has noticed it. What the store answers later changes nothing.
func TestVerdictWithoutTheStore(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.declare(0, 1, 2)
		time.Sleep(20 * time.Second)
		c.require("of 0", storeLimit+4*trip, 0, 1, 2)
	}, silent, silent, silent)
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		require.Nil(t, c.members[2].declare(of(2), deathWait, nil), "it waits no longer")
		require.Equal(t, deathWait, c.passed())
		time.Sleep(20 * time.Second)
		c.require("of 2", 3*storeLimit+4*trip, 0, 1, 2)
	}, silent, silent, silent)
	for _, lost := range []bootstrap.Claimer{dead, nil, claimerFunc(func([]byte) ([]byte, error) { panic("for the test") })} {
		inWorld(t, func(t *testing.T, c *arbiterWorld) {
			require.Equal(t, "of 2", c.members[2].declare(of(2), deathWait, nil).Message)
			require.Equal(t, 4*trip, c.passed())
			time.Sleep(trip)
			c.require("of 2", 5*trip, 0, 1, 2)
		}, lost, lost, lost)
	}
}

// Who declares a failure waits no longer than it wants to.
func TestWaitsForTheVerdict(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		require.Nil(t, c.members[0].declare(of(0), abortWait, nil))
		require.Equal(t, abortWait, c.passed())
		require.Nil(t, c.members[0].declare(of(0), 0, nil))
		require.Equal(t, abortWait, c.passed())
	}, silent, silent)
}

// Frames that are lost with a link find their way around it.
func TestVerdictAroundLostLinks(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.declare(2) // DECLARE is under way to member 0
		c.lose(0, 2)
		time.Sleep(5 * trip)
		require.Empty(t, c.groups[2].message())
		c.noticed(0, 2)
		c.noticed(2, 0)
		time.Sleep(time.Second)
		c.require("of 2", 20*trip, 0, 1, 2)
	}, nil, nil, nil)
	inWorld(t, func(t *testing.T, c *arbiterWorld) { // a path over two members
		for _, link := range [][2]int{{0, 3}, {0, 2}, {1, 3}} {
			c.lose(link[0], link[1])
			c.noticed(link[0], link[1])
			c.noticed(link[1], link[0])
		}
		time.Sleep(10 * trip)
		require.NotNil(t, c.members[3].declare(of(3), deathWait, nil))
		time.Sleep(time.Second)
		c.require("of 3", 35*trip, 0, 1, 2, 3)
	}, nil, nil, nil, nil)
}

// A member that is cut off decides alone, and those that are joined have another cause, if no store joins them.
func TestVerdictOfThoseThatAreJoined(t *testing.T) {
	stores := lasting(3)
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		for i := range 2 {
			c.lose(i, 2)
			c.noticed(i, 2)
			c.noticed(2, i)
		}
		c.declare(0, 1, 2)
		time.Sleep(time.Second)
		first := c.groups[0].message()
		require.NotEmpty(t, first)
		c.require(first, 3*trip, 0, 1)
		c.require("of 2", storeLimit, 2)
	}, stores[0], stores[1], silent)
}

// A member that has left answers nothing, although its process lives on. That is noticed at once by who
// declares a failure or takes a frame, and by others that wait within 20 ms.
func TestVerdictWithoutThoseThatLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.leave(0)
		require.Equal(t, "of 2", c.members[2].declare(of(2), deathWait, nil).Message)
		require.Equal(t, 4*trip, c.passed())
		time.Sleep(time.Second)
		c.require("of 2", 5*trip, 1, 2)
	}, nil, nil, nil)
	inWorld(t, func(t *testing.T, c *arbiterWorld) { // member 0 is destroyed during its ballot, while it and member 1 wait for the store
		c.declare(2)
		time.Sleep(100 * time.Millisecond)
		c.members[0].flush(flushLimit)
		require.Equal(t, storeLimit+3*trip, c.passed(), "it has its verdict")
		c.leave(0)
		time.Sleep(time.Second)
		c.require("of 2", storeLimit+6*trip, 1, 2)
	}, silent, nil, nil)
	inWorld(t, func(t *testing.T, c *arbiterWorld) { // member 1 is, while the owner of the ballot waits for it
		c.declare(2)
		time.Sleep(100 * time.Millisecond)
		require.Empty(t, c.groups[0].message())
		c.leave(1)
		time.Sleep(time.Second)
		c.require("of 2", 100*time.Millisecond+arbiterTick+2*trip, 0, 2)
		require.Empty(t, c.groups[1].message())
	}, nil, silent, nil)
}

// Who leaves waits until what it has declared is decided and sent, for a bounded time.
func TestFlush(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.members[0].flush(flushLimit)
		require.Zero(t, c.passed(), "nothing is to be sent")
		c.declare(0)
		c.members[0].flush(flushLimit)
		require.Equal(t, flushLimit, c.passed())
		c.members[0].close()
		c.members[0].flush(flushLimit)
		require.Nil(t, c.members[0].declare(of(0), deathWait, nil))
		require.Equal(t, flushLimit, c.passed(), "a closed arbiter keeps nobody waiting")
	}, silent, silent)
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		c.full[0][1] = true
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		go func() {
			time.Sleep(105 * time.Millisecond)
			c.mu.Lock()
			c.full[0][1] = false
			c.mu.Unlock()
		}()
		c.members[0].flush(flushLimit)
		require.Equal(t, 6*arbiterTick, c.passed())
		time.Sleep(2 * trip)
		c.require("of 0", 6*arbiterTick+trip, 0, 1)
	}, lasting(2)...)
}

// An arbiter that has nothing to do sleeps: frames are sent when there is a failure only, and none again and again
// after the verdict.
func TestArbitersSleep(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		time.Sleep(time.Hour)
		require.Zero(t, c.frames())
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		time.Sleep(time.Hour)
		require.Equal(t, 3*2, c.frames(), "CAUSE from each member to each other one")
		for i := range c.members {
			c.members[i].push(func() {
				if c.members[i].member.Unsettled() {
					t.Errorf("member %d looks for those that leave", i)
				}
			})
		}
		synctest.Wait()
	}, lasting(3)...)
}

// What a store holds under the key, that no rank has written, is one failure for all.
func TestGarbageInTheStoreIsOneCause(t *testing.T) {
	for _, garbage := range []string{"", "hello", `{"status": 0}`, `{"status": -2, "rank": 99}`, string(make([]byte, 5000))} {
		answer := claimerFunc(func([]byte) ([]byte, error) { return []byte(garbage), nil })
		inWorld(t, func(t *testing.T, c *arbiterWorld) {
			f := c.members[0].declare(of(0), deathWait, nil)
			require.Equal(t, coll.Internal, f.Status)
			require.Contains(t, f.Message, "sagecomm: key cause/4d in the store holds ")
			require.Equal(t, f, c.members[1].declare(of(1), deathWait, nil))
		}, answer, answer)
	}
}

// Frames that no member sends are refused at once.
func TestFramesOfNoMemberEndTheLink(t *testing.T) {
	record := []byte(encodeRecord(of(1), 6))
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		for name, f := range map[string]memberFrame{
			"another kind":        {tcp.Header{Kind: tcp.Goodbye, From: 2, Taken: 1}, nil},
			"not a lowest rank":   {tcp.Header{Kind: tcp.Declare, From: 3, Taken: 1}, [][]byte{record}},
			"no rank":             {tcp.Header{Kind: tcp.Declare, From: 1 << 31, Taken: 1}, [][]byte{record}},
			"to itself":           {tcp.Header{Kind: tcp.Declare, From: 2, To: 2, Taken: 1}, [][]byte{record}},
			"no record":           {tcp.Header{Kind: tcp.Declare, From: 2, Taken: 1}, nil},
			"a strange record":    {tcp.Header{Kind: tcp.Declare, From: 2, Taken: 1}, [][]byte{[]byte("{}")}},
			"too many hops":       {tcp.Header{Kind: tcp.Declare, From: 2, Taken: 1 << 63}, [][]byte{record}},
			"a ballot of nobody":  {tcp.Header{Kind: tcp.Cause, From: 2, Taken: 1, Number: 1 << 32}, [][]byte{record}},
			"a link of no member": {tcp.Header{Kind: tcp.Lost, From: 2, Number: 2, Block: 1}, nil},
			"a link to itself":    {tcp.Header{Kind: tcp.Lost, From: 2, Number: 2, Block: 2}, nil},
		} {
			var payload []byte
			for _, part := range f.payload {
				payload = part
			}
			f.header.Group = 77
			require.Error(t, c.members[0].take(1, &f.header, payload), name)
		}
		time.Sleep(time.Second)
		require.Empty(t, c.groups[0].message())
		require.NoError(t, c.members[0].take(1, &tcp.Header{Kind: tcp.Declare, Group: 77, From: 2, Taken: 3}, record))
		time.Sleep(5 * trip)
		c.require("of 1", 2*time.Second, 0, 1, 2)
	}, nil, nil, nil)
}

// A group that comes later has the verdict as well; who has left has none.
func TestGroupsOfAnArbiter(t *testing.T) {
	inWorld(t, func(t *testing.T, c *arbiterWorld) {
		var early, late, gone notedGroup
		c.members[0].serve(&early)
		c.members[0].serve(&gone)
		c.members[0].leave(&gone)
		require.NotNil(t, c.members[0].declare(of(0), deathWait, nil))
		c.members[0].serve(&late)
		synctest.Wait()
		require.Equal(t, "of 0", early.message())
		require.Equal(t, "of 0", late.message())
		require.Empty(t, gone.message())
	}, lasting(2)...)
}

// Records hold what an error of C holds, and fit into a frame whatever is in them.
func TestRecordsOfFailures(t *testing.T) {
	long := string(make([]byte, 10_000)) // six bytes of JSON for each
	for _, f := range []*coll.Failure{
		{Status: coll.Timeout, Rank: 3, PID: 12, Sequence: 7, OnDevice: true, Op: "all_reduce", Group: "g", Host: "h", Message: "m"},
		{Status: coll.Internal, Rank: -1, Message: "ä"},
		{Status: coll.System, Op: long, Group: long, Host: long, Message: long},
		{Status: coll.Timeout, Rank: -2},
		{Status: coll.Timeout, Rank: 4},
		{Status: coll.OK, Message: "m"},
		{Status: -99, Message: "m"},
		{Status: 99, Message: "m"},
	} {
		record := encodeRecord(f, 4)
		require.LessOrEqual(t, len(record), mostRecord)
		got, err := decodeRecord(record, 4)
		require.NoError(t, err)
		if f.Message != long {
			want := *f
			if f.Rank == -2 || f.Rank == 4 {
				want.Rank = -1
			}
			if f.Message == "m" && f.Status != coll.Timeout {
				want.Status = coll.Internal
			}
			require.Equal(t, &want, got)
		} else {
			require.NotEmpty(t, got.Message)
		}
	}
}

// Whatever is cut, silent or leaves, and whenever, members that are joined by links or by the store have one cause, and
// all that know of a failure have one within 2 s: three claims may go by in silence.
func TestOneCauseOfArbiters(t *testing.T) {
	worlds := uint64(1000)
	if testing.Short() {
		worlds = 60
	}
	for seed := range worlds {
		r := rand.New(rand.NewPCG(seed, 2))
		stores := lasting(3 + r.IntN(3))
		shared := stores[0] // of the test
		stores = stores[1:]
		reaches := make([]bool, len(stores)) // by member: the store, which answers it at once
		for i, store := range stores {
			late := time.Duration(r.IntN(2000)) * time.Millisecond
			kind := r.IntN(5)
			reaches[i] = kind == 4
			switch kind {
			case 0:
				stores[i] = nil
			case 1:
				stores[i] = dead
			case 2: // the answer comes late
				stores[i] = claimerFunc(func(value []byte) ([]byte, error) {
					value, err := store.Claim("cause/4d", value)
					time.Sleep(late)
					return value, err
				})
			case 3: // the claim does
				stores[i] = claimerFunc(func(value []byte) ([]byte, error) {
					time.Sleep(late)
					return store.Claim("cause/4d", value)
				})
			}
		}
		inWorld(t, func(t *testing.T, c *arbiterWorld) {
			n, quiet := len(stores), r.IntN(3) == 0
			var events sync.WaitGroup
			at := func(most int, do func()) {
				when := time.Duration(r.IntN(most)) * time.Millisecond
				events.Go(func() {
					time.Sleep(when)
					do()
				})
			}
			knows := make([]bool, n)
			for range 2 + r.IntN(5) {
				i, j := r.IntN(n), r.IntN(n)
				switch kind := r.IntN(4); {
				case kind == 0:
					at(1000, func() { c.leave(i) })
				case kind == 1 && i != j:
					after := [2]time.Duration{time.Duration(r.IntN(100)) * time.Millisecond, time.Duration(r.IntN(100)) * time.Millisecond}
					knows[i], knows[j] = knows[i] || !quiet, knows[j] || !quiet
					at(1000, func() {
						c.lose(i, j)
						for end, ends := range [2][2]int{{i, j}, {j, i}} {
							events.Go(func() {
								time.Sleep(after[end])
								c.noticed(ends[0], ends[1])
								if !quiet {
									c.members[ends[0]].declare(of(ends[0]), 0, nil)
								}
							})
						}
					})
				default:
					knows[i] = true
					at(1000, func() { c.members[i].declare(of(i), abortWait, nil) })
				}
			}
			events.Wait()
			last := c.passed()
			time.Sleep(10 * time.Second)
			for i := range n { // those that the store joins, also members that have left since
				f := c.groups[i].message()
				if f == "" {
					continue
				}
				c.require(f, last+2*time.Second, i)
				if reaches[i] {
					value, err := shared.Claim("cause/4d", []byte("none"))
					require.NoError(t, err)
					first, err := decodeRecord(string(value), 2*n)
					require.NoError(t, err, "seed %d", seed)
					require.Equal(t, first.Message, f, "seed %d: member %d and the store", seed, i)
				}
			}
			for i := range n {
				if c.left[i] {
					continue
				}
				for at, reached := []int{i}, map[int]bool{i: true}; len(at) > 0; at = at[1:] {
					for j := range n {
						if c.cut[at[0]][j] || c.left[j] || reached[j] {
							continue
						}
						reached[j], at = true, append(at, j)
						require.Equal(t, c.groups[i].message(), c.groups[j].message(), "seed %d: members %d and %d", seed, i, j)
					}
				}
				if knows[i] {
					require.NotEmpty(t, c.groups[i].message(), "seed %d: member %d waits for ever", seed, i)
				}
				require.LessOrEqual(t, c.groups[i].times, 1)
			}
		}, stores...)
	}
}
