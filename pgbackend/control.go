package pgbackend

import (
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/shmem"
)

// This file makes control exchanges: small all-gathers of the library's own data, over shared memory and links, at any
// time in the life of a group. They take no ticket and no number, and no driver is involved, so they also work while
// collectives hang. docs/protocol.md, section 13, has the words and the reasons; control_failure.go has the errors.

// topic separates control exchanges that do not wait for each other. Ranks make the exchanges of one topic in the same
// order; exchanges of different topics may be made in any order, and at the same time.
type topic int

const (
	topicUniqueID topic = iota // unique ids of vendor libraries
	topicIPC                   // handles of memory of devices
	topicEngine                // agreement on engines
	topicFusion                // agreement on what is fused
	topicTuning                // results of measurements
	topicMembers               // ranks of groups that are split off
	topicCount
)

func (t topic) String() string {
	return [...]string{"unique id", "IPC", "engine", "fusion", "tuning", "members"}[t]
}

const (
	controlPart       = 4 << 10 // bytes of a message that one round carries
	maxControlMessage = 1 << 20
	maxPurpose        = 152 // bytes
)

// controlEntry is the place of one topic in the control area of a rank. Only that rank writes it. All words may share
// lines, because exchanges are rare.
type controlEntry struct {
	posted  atomic.Uint64 // number of the last round whose data lies here
	taken   atomic.Uint64 // number of the last round in which the owner has read the entries of all peers
	bytes   atomic.Uint64 // length of the whole message
	purpose atomic.Uint64 // hash of the purpose
	named   atomic.Uint64 // length of the purpose
	name    [maxPurpose]byte
	data    [controlPart]byte
}

type controlArea [topicCount]controlEntry

// controlBytes is the size of a control area.
const controlBytes = int64(unsafe.Sizeof(controlArea{}))

// hasControlArea reports whether a control area fits at an offset in a mapping.
func hasControlArea(m *shmem.Mapping, off int64) bool {
	return off > 0 && off%64 == 0 && off <= m.Size()-controlBytes
}

// controlTopic is this rank's side of a topic.
type controlTopic struct {
	mu    sync.Mutex    // held during an exchange, which may wait for peers
	round uint64        // number of the last round that this rank has taken
	end   *coll.Failure // why an exchange was not completed, and no later one can be

	// Of this rank's rounds, as in its entry, which other processes of this host may write by mistake. Frames of ranks
	// of other hosts are compared with these.
	posted, taken, named atomic.Uint64
}

// exchange gives every rank the messages of all ranks, by rank. All ranks call it with the same topic and purpose,
// which is a short text for errors. A message has at most 1 MiB; lengths may differ by rank. Exchanges of one topic on
// one rank wait for each other, and the timeout of each counts from its turn. An exchange ends early if the group fails
// or is destroyed, or if a peer leaves or dies.
//
// Any error is the group's failure, because half an agreement is none, except where an argument is refused or this rank
// destroys the group.
//
// Requires: the caller holds no lock.
func (g *Group) exchange(t topic, purpose string, mine []byte, timeout time.Duration) (all [][]byte, err *coll.Failure) {
	if f := g.refuseControl(t, purpose, len(mine)); f != nil {
		return nil, f
	}
	if !g.life.acquire() {
		return nil, destroyed(g.name)
	}
	defer g.life.release()
	g.exchanges.Add(1)
	defer g.exchanges.Add(-1)
	before := g.cause.Load() == nil
	x := controlExchange{g: g, topic: t, purpose: purpose, hash: purposeHash(purpose), mine: mine, timeout: timeout}
	all, end := x.inTurn(&g.control[t])
	if end == nil {
		return all, nil
	}
	if before {
		g.lostExchange.Store(true)
	}
	if g.life.now() == live { // a rank that leaves is no failure of the others
		f := *end
		g.fail(&f)
	}
	if f := g.failed(); f != nil {
		return nil, f
	}
	return nil, end
}

func purposeHash(purpose string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose)) // writing to a hash does not fail
	return h.Sum64()
}

// controlExchange is an exchange that is under way.
type controlExchange struct {
	g        *Group
	topic    topic
	purpose  string
	hash     uint64 // of the purpose
	mine     []byte
	timeout  time.Duration
	deadline time.Time
	entries  []*controlEntry // by rank, this one included
	first    uint64          // number of the first round
	part     int             // bytes of the message in the own entry
	all      [][]byte        // messages by rank; nil: not known yet
}

// inTurn makes the exchange when those before it in the topic are over, and remembers why it was not completed. It
// holds the lock of the topic, so it declares nothing.
func (x *controlExchange) inTurn(c *controlTopic) ([][]byte, *coll.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		c.end = x.rounds(c)
	}
	return x.all, c.end
}

// rounds makes as many rounds as the longest message needs.
// Requires: the topic's lock.
func (x *controlExchange) rounds(c *controlTopic) (end *coll.Failure) {
	g := x.g
	defer func() {
		if r := recover(); r != nil {
			end = g.fault(r)
		}
	}()
	if end := x.groupEnded(); end != nil { // peers may have posted before they knew
		return end
	}
	x.entries = make([]*controlEntry, g.size)
	for rank := range x.entries {
		x.entries[rank] = x.topic.entry(g, rank)
	}
	x.all = make([][]byte, g.size)
	x.all[g.rank] = append([]byte{}, x.mine...)
	x.deadline = time.Now().Add(x.timeout)
	x.first = c.round + 1
	own := x.entries[g.rank]
	for offset, longest := 0, len(x.mine); offset == 0 || offset < longest; offset += controlPart {
		n := c.round + 1
		if end := x.await(takenWord, n-1); end != nil {
			return end
		}
		own.bytes.Store(uint64(len(x.mine)))
		own.purpose.Store(x.hash)
		named := uint64(copy(own.name[:], x.purpose))
		own.named.Store(named)
		c.named.Store(named)
		x.part = copy(own.data[:], x.mine[min(offset, len(x.mine)):])
		c.posted.Store(n)
		own.posted.Store(n)
		if end := x.await(postedWord, n); end != nil {
			return end
		}
		for rank := range x.entries {
			if rank == g.rank {
				continue
			}
			if end := x.take(rank, offset); end != nil {
				return end
			}
			longest = max(longest, len(x.all[rank]))
		}
		c.taken.Store(n)
		own.taken.Store(n)
		c.round = n
	}
	x.tell(nil) // or with the first look of the next exchange, which nobody begins before
	return nil
}

// take copies a peer's part of this round out of its entry. Each word is read once, because a peer may write anything.
func (x *controlExchange) take(rank, offset int) *coll.Failure {
	e := x.entries[rank]
	hash, bytes := e.purpose.Load(), e.bytes.Load()
	switch {
	case hash != x.hash && offset == 0:
		return x.mismatch(rank, hash)
	case hash != x.hash:
		return x.corrupted(rank, "purpose")
	case bytes > maxControlMessage || offset > 0 && bytes != uint64(len(x.all[rank])):
		return x.corrupted(rank, "length")
	}
	if offset == 0 {
		x.all[rank] = make([]byte, bytes)
	}
	if message := x.all[rank]; offset < len(message) {
		copy(message[offset:], e.data[:])
	}
	return nil
}

// mismatch returns the failure for a peer whose purpose has another hash.
func (x *controlExchange) mismatch(rank int, hash uint64) *coll.Failure {
	e := x.entries[rank]
	n := e.named.Load()
	if n > maxPurpose {
		return x.corrupted(rank, "purpose")
	}
	theirs := string(e.name[:n])
	if purposeHash(theirs) != hash { // no rank writes that
		return x.corrupted(rank, "purpose")
	}
	return x.disagreement(rank, theirs)
}

// roundWord is a word of an entry that holds the number of a round.
type roundWord struct {
	of   func(*controlEntry) *atomic.Uint64
	name string // for errors
}

var (
	postedWord = roundWord{func(e *controlEntry) *atomic.Uint64 { return &e.posted }, "number of posted rounds"}
	takenWord  = roundWord{func(e *controlEntry) *atomic.Uint64 { return &e.taken }, "number of taken rounds"}
)

// Waiting for peers: a few looks at once, then sleeps that grow. An exchange may wait for long, and nobody waits for
// its microseconds.
const (
	controlLooks      = 50
	controlFirstSleep = 20 * time.Microsecond
	controlSleep      = time.Millisecond
)

// await returns when a word of every peer is want. Until then it is want - 1, and any other number is garbage: a peer
// cannot pass want before this rank has done its part of the next step.
func (x *controlExchange) await(w roundWord, want uint64) *coll.Failure {
	missing := make([]int, 0, len(x.entries))
	for looks, sleep := 0, controlFirstSleep; ; looks++ {
		missing = x.tell(missing[:0])
		untold := missing
		for rank, e := range x.entries {
			if rank == x.g.rank {
				continue
			}
			switch n := w.of(e).Load(); {
			case n == want:
			case n == want-1 && want > 0:
				if !slices.Contains(untold, rank) {
					missing = append(missing, rank)
				}
			default:
				return x.corrupted(rank, w.name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if end := x.ended(missing, w, want); end != nil {
			return end
		}
		if looks < controlLooks {
			runtime.Gosched()
			continue
		}
		time.Sleep(sleep)
		sleep = min(2*sleep, controlSleep)
	}
}

// groupEnded returns the failure with which the group has ended, nil if it has not. The death of a peer is such a
// failure (peerDied). The failure is not adopted here, because observers are not called under the topic's lock.
func (x *controlExchange) groupEnded() *coll.Failure {
	g := x.g
	if f := g.cause.Load(); f != nil {
		return f
	}
	if f := g.run.FirstCause(); f != nil {
		return f
	}
	if g.life.now() != live {
		return g.destroyedHere()
	}
	return nil
}

// ended returns the reason why a wait for the missing ranks is to end, nil if there is none.
func (x *controlExchange) ended(missing []int, w roundWord, want uint64) *coll.Failure {
	g := x.g
	if f := x.groupEnded(); f != nil {
		return f
	}
	for _, rank := range missing {
		// It may have left after it did its part, so the second look comes after the one at its goodbye.
		if _, left := g.run.LastCall(rank); !left || w.of(x.entries[rank]).Load() == want {
			continue
		}
		if f := g.run.GaveUp(rank); f != nil {
			return f
		}
		return &coll.Failure{Status: coll.PeerFailure, Rank: rank, Message: diagnosis{g, g.run}.hasLeft(rank, x.String())}
	}
	if time.Now().After(x.deadline) {
		return x.timedOut(missing)
	}
	return nil
}

// entry returns the entry of a rank.
func (t topic) entry(g *Group, rank int) *controlEntry {
	if r := g.remote(rank); r != nil {
		return r.entry(t)
	}
	area := (*controlArea)(unsafe.Add(g.maps[rank].Base(), g.members[rank].Control))
	return &area[t]
}

// awaitsExchange returns the purpose of an exchange for which a rank waits and that this rank has not begun, or "".
func (g *Group) awaitsExchange(rank int) string {
	r := g.remote(rank)
	if r != nil {
		r.naming.Lock()
		defer r.naming.Unlock()
	}
	for t := range topicCount {
		if r != nil && r.made[t].Load() == nil { // it has posted nothing
			continue
		}
		theirs, mine := t.entry(g, rank), t.entry(g, g.rank)
		if theirs.posted.Load() <= mine.posted.Load() {
			continue
		}
		n := theirs.named.Load()
		if purpose := string(theirs.name[:min(n, maxPurpose)]); purposeHash(purpose) == theirs.purpose.Load() {
			return purpose
		}
	}
	return ""
}

func (x *controlExchange) String() string {
	return fmt.Sprintf("control exchange %q (topic %v)", x.purpose, x.topic)
}
