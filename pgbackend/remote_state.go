package pgbackend

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file finds out what ranks of other hosts have called and how far they are. That crosses when it is asked for (docs/protocol.md,
// section 16, ASK and STATE).

// Times of questions.
const (
	stateLimit = 200 * time.Millisecond // how long a diagnosis waits for answers; who gives none counts as silent,
	stateSlice = time.Millisecond       // and how often it looks for them
)

// A rank whose operations have not gone on for compareEvery asks, then ever more seldom, but at least each compareSeldom. Tests change the first.
var compareEvery = 250 * time.Millisecond

const (
	compareSeldom  = 10 * time.Second
	compareStreams = time.Second // so often one asks whose calls a vendor's library carries out, if there are new ones
)

// askRemotes asks all ranks of other hosts for their states. It asks once more where several do not answer: those that are only slow may do so
// by then.
// Requires: the group is acquired.
func (g *Group) askRemotes() {
	all := g.remoteRanks()
	g.ask(time.Now().Add(stateLimit), all...)
	if silent := slices.DeleteFunc(all, func(rank int) bool { return !g.isSilent(rank) }); len(silent) > 1 {
		g.ask(time.Now().Add(stateLimit), silent...)
	}
}

// remoteRanks returns the ranks of other hosts.
func (g *Group) remoteRanks() (list []int) {
	for rank, r := range g.remotes {
		if r != nil {
			list = append(list, rank)
		}
	}
	return list
}

// ask asks ranks of other hosts for their states: what they have called, how far they are, and for whom they wait. It returns when those of all
// that live and have not left lie in the shadows, or at the given time.
// Requires: the group is acquired.
func (g *Group) ask(until time.Time, ranks ...int) {
	waits := map[*remoteControl]int64{}
	for _, rank := range ranks {
		if g.answers(rank) {
			r := g.remotes[rank]
			waits[r] = r.ask()
			g.links.network.set.Ask(r.pair)
		}
	}
	for ; len(waits) > 0 && time.Now().Before(until); time.Sleep(stateSlice) {
		maps.DeleteFunc(waits, func(r *remoteControl, n int64) bool { return r.states.Load() != n })
	}
}

// answers reports whether a rank of another host lives and has not left.
func (g *Group) answers(rank int) bool {
	_, left := g.run.LastCall(rank)
	return !left && !slices.Contains(g.life.dead(), rank)
}

// isSilent reports whether a rank of another host, which lives and has not left, has not answered a question for stateLimit.
func (g *Group) isSilent(rank int) bool {
	r := g.remote(rank)
	return r != nil && r.unanswered() && g.answers(rank)
}

// ask notes a question, and returns how many states have come before it.
func (r *remoteControl) ask() int64 {
	r.question.Lock()
	defer r.question.Unlock()
	if n := r.states.Load(); r.question.at.IsZero() || n != r.question.before {
		r.question.before, r.question.at = n, time.Now()
	}
	return r.question.before
}

// unanswered reports whether a question has been without an answer for stateLimit.
func (r *remoteControl) unanswered() bool {
	r.question.Lock()
	defer r.question.Unlock()
	return !r.question.at.IsZero() && r.states.Load() == r.question.before && time.Since(r.question.at) >= stateLimit
}

// lastCall returns what a rank has called last, as the end of a sentence about it.
func (g diagnosis) lastCall(rank int) string {
	did, last := "has called no collective yet", g.last(rank)
	if call, ok := g.run.Announced(rank, last); ok {
		did = "last called " + call.Op.Describe(last)
	}
	if !g.isSilent(rank) {
		return did
	}
	if last > 0 {
		return "had " + strings.TrimPrefix(did, "has ") + " when it last answered, and does not answer now: it may be stopped, or its host busy"
	}
	return "does not answer, so it is not known what it has called: it may be stopped, or its host busy"
}

// followRemotes compares the calls of this rank with those of a rank on another host for which it waits, while operations do not go on, until
// the group has a cause. Where no data moves between two ranks that have made different calls, neither of them finds out by itself. The
// comparisons become rarer than the first one, because a rank may wait for long. Where a vendor's library moves the data, different calls may
// well end, so there it compares while operations go on, too. It is a goroutine of the group.
func (g *Group) followRemotes(first time.Duration) {
	defer recoverFrom("the comparison of calls between hosts")
	before, every := "", first
	compared, at := uint64(0), time.Now()
	for {
		select {
		case <-g.announced:
			return
		case <-time.After(every):
		}
		if calls := g.libraryCalls(); calls > compared && time.Since(at) >= compareStreams {
			g.guard(g.compareRemotes)
			compared, at = calls, time.Now()
		}
		now := g.unfinishedNow()
		if now == "" || now != before {
			before, every = now, first
			continue
		}
		g.guard(g.compareRemotes)
		every = min(2*every, compareSeldom)
	}
}

// unfinishedNow returns a text that changes while operations go on, "" where none is unfinished.
func (g *Group) unfinishedNow() (text string) {
	if !g.life.acquire() {
		return ""
	}
	defer g.life.release()
	for _, l := range g.lanes() {
		if n := l.run.Unfinished(); n > 0 {
			text += fmt.Sprint(l.run.Lane(), n, l.run.Sequence(), l.run.Consumed(g.rank), " ")
		}
	}
	return text
}

// libraryCalls returns the number of the last collective of the device lane if a vendor's library carries collectives out, else 0.
func (g *Group) libraryCalls() uint64 {
	if !g.throughLibrary() || !g.life.acquire() {
		return 0
	}
	defer g.life.release()
	if d := g.device.Load(); d != nil {
		return d.run.Sequence()
	}
	return 0
}

// compareRemotes declares a mismatch if the calls of a rank on another host, for which this rank may wait, differ from this one's.
func (g *Group) compareRemotes() {
	if !g.life.acquire() {
		return
	}
	defer g.life.release()
	for _, l := range g.lanes() {
		d := diagnosis{g, l.run}
		others := d.mayWaitFor()
		g.ask(time.Now().Add(stateLimit), others...)
		for _, rank := range others {
			if f := d.differsFrom(rank); f != nil && g.cause.Load() == nil {
				g.declareFailure(f)
				return
			}
		}
	}
}

// mayWaitFor returns the rank of another host for which this rank waits, if there is one. Where streams wait for streams in a vendor's library,
// those of this rank may wait for any.
func (g diagnosis) mayWaitFor() []int {
	if g.run.Lane() == runner.DeviceLane && g.throughLibrary() {
		return g.remoteRanks()
	}
	if awaited := g.awaitedBy(g.rank, time.Now().Add(stateLimit)); awaited >= 0 && g.isRemote(awaited) {
		return []int{awaited}
	}
	return nil
}

// differsFrom returns the failure of the first call in which this rank and another one differ, nil if they know of none.
func (g diagnosis) differsFrom(rank int) *coll.Failure {
	if call, _, found := g.difference(rank, min(g.last(g.rank), g.last(rank))); found {
		return g.mismatch(runner.Incident{Code: runner.Mismatch, Peer: rank, Sequence: call.Sequence, Op: call.Op})
	}
	return nil
}
