package pgbackend

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// In these tests the arbiters of a group are in one process, with links in memory, and time is that of a bubble of
// synctest: what takes no virtual time is as good as immediate.

// trip is how long a frame is under way.
const trip = time.Millisecond

// notedGroup is a group that only notes its verdict.
type notedGroup struct {
	mu    sync.Mutex
	first *coll.Failure
	times int
	at    time.Time
}

func (*notedGroup) haveLeft([]int) (left, known bool) { return false, false }

func (g *notedGroup) linkWanted(int) {}

func (g *notedGroup) takeVerdict(first *coll.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.first, g.at = first, time.Now()
	g.times++
}

func (g *notedGroup) Panicked(r any) *coll.Failure {
	g.takeVerdict(fault(r))
	return nil
}

func (g *notedGroup) message() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first == nil {
		return ""
	}
	return g.first.Message
}

// arbiterWorld is the arbiters of one group, a member for each of which has two ranks.
type arbiterWorld struct {
	t       *testing.T
	members []*arbiter
	groups  []*notedGroup
	began   time.Time

	mu    sync.Mutex
	left  []bool
	said  [][]bool // by member and member: the farewell of the other one has come over their link
	cut   [][]bool // by pair: nothing is carried any more
	full  [][]bool // by sender and receiver: the link takes nothing now
	half  [][]bool // by sender and receiver: of a frame the link takes a part only, and is full then
	sent  int      // frames
	way   [][]chan memberFrame
	rest  [][]*memberFrame // by sender and receiver: of which a part has stayed behind
	why   []error          // for which links were broken
	looks atomic.Int64     // for members that have left
	ends  sync.WaitGroup
}

// newArbiterWorld makes arbiters with stores by member. A nil store does not last.
func newArbiterWorld(t *testing.T, stores ...bootstrap.Claimer) *arbiterWorld {
	n := len(stores)
	c := &arbiterWorld{t: t, began: time.Now(), left: make([]bool, n)}
	var lowest []int
	for i := range n {
		lowest = append(lowest, 2*i)
		c.cut, c.full, c.half = append(c.cut, make([]bool, n)), append(c.full, make([]bool, n)), append(c.half, make([]bool, n))
		c.said = append(c.said, make([]bool, n))
		c.way, c.rest = append(c.way, make([]chan memberFrame, n)), append(c.rest, make([]*memberFrame, n))
	}
	for i, store := range stores {
		links := make([]memberLink, n)
		for j := range n {
			if i != j {
				c.way[i][j] = make(chan memberFrame, 1000)
				links[j] = &way{c, i, j}
			}
		}
		c.members = append(c.members, newArbiter(arbiterConfig{number: 77, size: 2 * n, lowest: lowest, self: i, links: links, store: store, key: "cause",
			left: func(member int) bool {
				c.looks.Add(1)
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.said[i][member]
			}}))
		c.groups = append(c.groups, &notedGroup{})
		c.members[i].serve(c.groups[i])
	}
	for i := range n {
		for j := range n {
			if i != j {
				c.ends.Go(func() { c.carry(i, j) })
			}
		}
	}
	return c
}

// way is the direction of a link.
type way struct {
	*arbiterWorld
	from, to int
}

func (w *way) TrySend(on int, h *tcp.Header, payload ...[]byte) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case on != 0 || h.Group != 77:
		panic(fmt.Sprintf("%+v on connection %d", h, on))
	case w.cut[w.from][w.to]:
		return false, errors.New("the link is lost")
	case w.full[w.from][w.to] || w.rest[w.from][w.to] != nil:
		return false, nil
	}
	w.sent++
	if w.half[w.from][w.to] {
		w.rest[w.from][w.to], w.full[w.from][w.to] = &memberFrame{*h, payload}, true
	} else {
		w.way[w.from][w.to] <- memberFrame{*h, payload}
	}
	return true, nil
}

func (*way) AfterSent(int, func()) {}
func (w *way) TryFlush(on int) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch rest := w.rest[w.from][w.to]; {
	case w.cut[w.from][w.to]:
		return false, errors.New("the link is lost")
	case rest == nil:
		return true, nil
	case w.full[w.from][w.to]:
		return false, nil
	default:
		w.rest[w.from][w.to] = nil
		w.way[w.from][w.to] <- *rest
		return true, nil
	}
}

// Break cuts the link, which both ends notice.
func (w *way) Break(why error) {
	w.lose(w.from, w.to)
	w.noticed(w.from, w.to)
	w.noticed(w.to, w.from)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = append(w.why, why)
}

// carry delivers what goes from one member to another one, a trip behind its sender.
func (c *arbiterWorld) carry(from, to int) {
	for f := range c.way[from][to] {
		time.Sleep(trip)
		c.mu.Lock()
		lost := c.cut[from][to]
		c.mu.Unlock()
		if lost {
			continue
		}
		var payload []byte
		for _, part := range f.payload {
			payload = append(payload, part...)
		}
		if err := c.members[to].take(from, &f.header, payload); err != nil {
			c.t.Error(err)
		}
	}
}

// lose cuts a link. What is under way is lost. Its ends notice that at some time, by noticed.
func (c *arbiterWorld) lose(i, j int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[i][j], c.cut[j][i] = true, true
}

func (c *arbiterWorld) noticed(i, j int) { c.members[i].linkLost(j) }

// leave lets a member leave the group, whose process lives on with its links. The others see that over links that are
// not cut.
func (c *arbiterWorld) leave(i int) {
	c.members[i].leave(c.groups[i])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left[i] = true
	for j := range c.said {
		c.said[j][i] = c.said[j][i] || !c.cut[j][i]
	}
}

// end ends everything.
func (c *arbiterWorld) end() {
	for i := range c.members {
		c.members[i].close()
	}
	for _, list := range c.way {
		for _, way := range list {
			if way != nil {
				close(way)
			}
		}
	}
	c.ends.Wait()
}

// passed returns the virtual time since the beginning.
func (c *arbiterWorld) passed() time.Duration { return time.Since(c.began) }

// require checks that members have one verdict, each once, by a time.
func (c *arbiterWorld) require(message string, by time.Duration, members ...int) {
	c.t.Helper()
	for _, i := range members {
		require.Equal(c.t, message, c.groups[i].message(), "member %d", i)
		c.groups[i].mu.Lock()
		times, at := c.groups[i].times, c.groups[i].at.Sub(c.began)
		c.groups[i].mu.Unlock()
		require.Equal(c.t, 1, times, "member %d", i)
		require.LessOrEqual(c.t, at, by, "member %d", i)
	}
}

// declare lets members declare failures for which nobody waits.
func (c *arbiterWorld) declare(members ...int) {
	for _, i := range members {
		go c.members[i].declare(of(i), 0, nil)
	}
	synctest.Wait()
}

func (c *arbiterWorld) frames() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// of is a failure that a member declares.
func of(member int) *coll.Failure {
	return &coll.Failure{Status: coll.PeerFailure, Rank: member, Message: fmt.Sprintf("of %d", member)}
}

// lasting returns claimers of one store.
func lasting(n int) []bootstrap.Claimer {
	store := bootstrap.NewMemStore()
	list := make([]bootstrap.Claimer, n)
	for i := range list {
		list[i], _ = store.Last()
	}
	return list
}

// claimerFunc is a store that answers by a function.
type claimerFunc func(value []byte) ([]byte, error)

func (f claimerFunc) Claim(_ string, value []byte) ([]byte, error) { return f(value) }
func (f claimerFunc) Release()                                     {}

// dead is a store whose connection fails, silent one that answers after 10 s, when nobody listens any more.
var (
	dead   = claimerFunc(func([]byte) ([]byte, error) { return nil, errors.New("connection refused") })
	silent = claimerFunc(func([]byte) ([]byte, error) {
		time.Sleep(10 * time.Second)
		return []byte(encodeRecord(of(3), 8)), nil
	})
)

func inWorld(t *testing.T, f func(t *testing.T, c *arbiterWorld), stores ...bootstrap.Claimer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(11 * time.Second) // claims of silent stores end
		c := newArbiterWorld(t, stores...)
		defer c.end()
		f(t, c)
	})
}
