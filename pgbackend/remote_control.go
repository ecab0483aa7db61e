package pgbackend

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// remoteControl is the control area of a rank of another host, in the memory of this process. Frames of that rank write
// it (docs/protocol.md, section 16, Control exchanges). Most ranks exchange nothing with most others, so an entry is
// made when it is first needed.
type remoteControl struct {
	set    *shadow.Set
	pair   *shadow.Pair              // of set
	own    *controlArea              // of this rank
	rounds *[topicCount]controlTopic // of this rank
	made   [topicCount]atomic.Pointer[controlEntry]
	states atomic.Int64                               // states of the rank that have come
	naming sync.Mutex                                 // held while a round is written into an entry, and while a diagnosis reads one that it has not waited for
	told   [topicCount]struct{ posted, taken uint64 } // of this rank's rounds, as the other one was told. Guarded by the lock of the topic.

	question struct {
		sync.Mutex
		before int64     // states that had come when it was asked
		at     time.Time // when the first question was asked that no state has come behind
	}
}

// remote returns the control area of a rank of another host, or nil for one of this host.
func (g *Group) remote(rank int) *remoteControl {
	if g.remotes == nil {
		return nil
	}
	return g.remotes[rank]
}

// entry returns the entry of a topic.
func (r *remoteControl) entry(t topic) *controlEntry {
	if r.made[t].Load() == nil {
		r.made[t].CompareAndSwap(nil, new(controlEntry))
	}
	return r.made[t].Load()
}

// take takes an EXCHANGE of the rank. It is the Control of the pair. What this rank may be reading is never
// overwritten: a round comes only after this rank has taken the one before it.
func (r *remoteControl) take(h *tcp.Header, payload []byte) error {
	if h.Channel >= uint8(topicCount) {
		return fmt.Errorf("topic %d", h.Channel)
	}
	theirs, mine := r.entry(topic(h.Channel)), &r.rounds[h.Channel]
	if posted, before := mine.posted.Load(), theirs.taken.Load(); h.Taken > posted || h.Taken < before {
		return fmt.Errorf("round %d was taken, after round %d, and this rank has posted %d", h.Taken, before, posted)
	}
	named := int(h.Tag)
	posted, taken := theirs.posted.Load(), mine.taken.Load()
	switch {
	case h.Number == 0 && (h.Bytes != 0 || h.Hash != 0 || h.Block != 0 || h.Tag != 0):
		return fmt.Errorf("no round, with fields of one")
	case h.Number == 0:
		theirs.taken.Store(h.Taken)
		return nil
	case h.Number != posted+1 || posted > taken:
		return fmt.Errorf("round %d after round %d, when this rank has taken %d", h.Number, posted, taken)
	case named < 0 || named > min(maxPurpose, len(payload)) || len(payload)-named > controlPart:
		return fmt.Errorf("a purpose of %d bytes in %d", named, len(payload))
	}
	r.naming.Lock()
	defer r.naming.Unlock()
	theirs.bytes.Store(h.Hash)
	theirs.purpose.Store(h.Block)
	theirs.named.Store(uint64(copy(theirs.name[:], payload[:named])))
	copy(theirs.data[:], payload[named:])
	theirs.taken.Store(h.Taken)
	theirs.posted.Store(h.Number)
	return nil
}

// tell sends what this rank has posted or taken in a topic and the other rank has not been told. part is how much of
// the data in the own entry belongs to the message. It does not wait, and reports whether all that was posted has been
// told. What a rank that has left would be told is of no use, and counts as told; whether it has done its part before
// stands in its entry. Else a link that is lost is a failure of the group, which whoever waits sees. Requires: the
// topic's lock.
func (r *remoteControl) tell(t topic, part int, left func() bool) bool {
	mine, own, told := &r.rounds[t], &r.own[t], &r.told[t]
	h := tcp.Header{Channel: uint8(t), Taken: mine.taken.Load()}
	posted := mine.posted.Load()
	var payload [][]byte
	switch {
	case told.posted < posted:
		named := mine.named.Load()
		h.Number, h.Hash, h.Block, h.Tag = posted, own.bytes.Load(), own.purpose.Load(), int32(named)
		payload = [][]byte{own.name[:named], own.data[:part]}
	case told.taken == h.Taken:
		return true
	}
	if sent, err := r.pair.SendEntry(h, payload...); err != nil || !sent {
		return told.posted == posted || left()
	}
	told.posted, told.taken = posted, h.Taken
	return true
}

// tell tells ranks of other hosts what they have not been told, and returns those for which the present round still
// waits to be sent.
func (x *controlExchange) tell(untold []int) []int {
	for rank, r := range x.g.remotes {
		if r == nil {
			continue
		}
		left := func() bool {
			_, left := x.g.run.LastCall(rank)
			return left
		}
		if !r.tell(x.topic, x.part, left) {
			untold = append(untold, rank)
		}
	}
	return untold
}
