package cost

import (
	"fmt"
	"time"

	"sagecomm/algo/plan"
)

// Link holds the costs of a class of links, in seconds.
type Link struct {
	Latency float64 // from the moment a message leaves until its first byte arrives
	Byte    float64 // per byte on the way; the messages of a rank leave, and arrive, one after the other in each class
	Step    float64 // for which a rank is busy with sending a message, and again with taking one, without its bytes
}

// Costs holds all costs that a price depends on.
type Costs struct {
	Links []Link
	Class func(from, to int) int // of Links; nil: all are of class 0
	// RanksPerHost, if not 0, states that hosts have this many consecutive ranks each, and that Class depends only on
	// whether two ranks are on one host. A [Pricer] of a large group then plays few ranks.
	RanksPerHost int
	Reduce       float64 // per byte of a result
	Copy         float64 // per byte copied inside a rank
	Capacity     int     // messages that a channel holds

	// Shared lists links that messages of many ranks pass one after the other, such as the uplink of a host: seconds per
	// byte of each. The first message to come is served first; of two that come at the same time, the one of the lower
	// sender.
	Shared []float64
	// Route appends the numbers of the shared links between two ranks, in the order in which a message passes them. A
	// message is on all of them at the same time, as far as they are free. Its latency lies in the middle of the route,
	// and it comes through the receiver's link in the order of arrival, not in the order in which messages are taken.
	// Nil means that no route has shared links.
	Route func(from, to int, via []int) []int
}

// Outcome is the result of playing a collective.
type Outcome struct {
	Time     time.Duration // from the moment at which all ranks enter until the last one is done, rounded up
	Messages int           // sent by the rank that sends most of them
	Sent     uint64        // bytes sent by the rank that sends most of them
}

// Price returns the time that [Play] predicts.
func Price(g plan.Group, l plan.Lengths, c Costs) (time.Duration, error) {
	o, err := Play(g, l, c)
	return o.Time, err
}

// Play carries out the steps of all ranks in time. A rank is busy with one step after the other. A send leaves when the
// channel has room and the rank's link is free, and the rank goes on meanwhile. A message arrives a latency and its
// bytes later. A step that waits for a message to be taken waits for the receiver. So a wait that a pipeline hides
// costs nothing.
//
// Without shared links ranks may be played in any order, since each time is the maximum of others plus a constant. With
// them, a message that comes to a shared link waits in the play until no rank can go on without it, and messages are
// then served in the order of time, since everything that can still happen happens later. So the result does not depend
// on the order in either case. Times are whole femtoseconds, so that all ranks predict the same; a time above 2^61 of
// them, 38 minutes, is an error.
//
// The play keeps the skeleton of each plan and the messages in each channel, and carries out steps as ranks come to
// them, so that thousands of ranks fit into memory.
func Play(g plan.Group, l plan.Lengths, c Costs) (Outcome, error) {
	p := prepare(g, l.Blocks != nil)
	return p.play(p.chunk, l, c)
}

// play plays prepared plans.
func (g *Prepared) play(chunk int, l plan.Lengths, c Costs) (Outcome, error) {
	if c.Capacity < 1 || len(c.Links) == 0 {
		return Outcome{}, fmt.Errorf(
			"a price needs a class of links, and channels that hold a message: %d classes, %d messages",
			len(c.Links), c.Capacity)
	}
	p := newPlay(g, chunk, l, c)
	end, err := p.finish()
	o := Outcome{Time: time.Duration((end + 999_999) / 1_000_000)}
	for rank := range p.players {
		o.Messages, o.Sent = max(o.Messages, p.players[rank].messages), max(o.Sent, p.players[rank].sent)
	}
	return o, err
}
