package pgbackend

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file finds out what ranks of other hosts have called and how far they are. That crosses when it is asked for
// (docs/protocol.md, section 16, ASK and STATE).

// Times of questions. Tests change them.
var (
	stateLimit     = 200 * time.Millisecond // how long who asks waits for answers; who gives none counts as silent
	diagnosisLimit = 400 * time.Millisecond // of a diagnosis in all, so that what follows it ends within a second of the timeout
	compareEvery   = 250 * time.Millisecond // a rank whose operations have not gone on for so long asks, then ever more seldom,
	streamsEvery   = time.Second            // so often one asks whose calls a vendor's library carries out, if there are new ones
)

const (
	stateSlice      = time.Millisecond      // between looks for answers
	compareSeldom   = 10 * time.Second      // but at least so often
	nextLook        = 50 * time.Millisecond // between looks while nothing goes on and ranks that answer are still to be asked
	longestAskPause = 50 * time.Millisecond // between questions to one rank in a diagnosis
)

// askFor asks ranks of other hosts for what the diagnosis of an incident needs, and returns until when that may go on.
// Where links are made at first need, a timeout first asks whom this rank waits for, and has more time for that.
// Requires: the group is acquired.
func (g diagnosis) askFor(t runner.Incident) (until time.Time) {
	if until = time.Now().Add(diagnosisLimit); g.makesLinks() && t.Code == runner.Timeout {
		until = until.Add(stateLimit / 2)
		g.askAwaited(t.Peer)
	}
	g.askRemotes(until)
	return until
}

// askAwaited asks the rank that this one waits for, and then the one that that waits for, as far as that leads within
// half of stateLimit: where links are made at first need, these links come before those to all others. Requires: the
// group is acquired.
func (g diagnosis) askAwaited(awaited int) {
	seen := map[int]bool{g.rank: true}
	for until := time.Now().Add(stateLimit / 2); awaited >= 0 && !seen[awaited]; awaited = g.run.Awaits(awaited) {
		seen[awaited] = true
		if g.isRemote(awaited) && len(g.ask(time.Until(until), awaited)) > 0 {
			return
		}
	}
}

// askRemotes asks all ranks of other hosts for their states, until the given time at most. It asks once more where
// several do not answer: those that are only slow may do so by then. Something of diagnosisLimit is left for the search
// behind it. Requires: the group is acquired.
func (g *Group) askRemotes(until time.Time) {
	all := g.remoteRanks()
	g.ask(min(stateLimit, time.Until(until)), all...)
	if silent := slices.DeleteFunc(all, func(rank int) bool { return !g.isSilent(rank) && !g.isUnmet(rank) }); len(silent) > 1 {
		g.ask(min(stateLimit/2, time.Until(until)), silent...)
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

// ask asks ranks of other hosts for their states: what they have called, how far they are, and for whom they wait. It
// returns when those of all that live and have not left lie in the shadows, after the given time, or when the group
// gets another cause, since nobody needs the answers then. It returns the ranks that have not answered. Requires: the
// group is acquired.
func (g *Group) ask(atMost time.Duration, ranks ...int) (unanswered []int) {
	return g.collect(g.question(ranks...), atMost)
}

// question is a question to a rank of another host that is open.
type question struct {
	before int64 // states of the rank that had come
	stood  bool  // it was asked before: the answer may be older than this question
}

// question asks ranks of other hosts that live and have not left, and does not wait.
func (g *Group) question(ranks ...int) map[int]question {
	open := map[int]question{}
	for _, rank := range ranks {
		if g.answers(rank) {
			r := g.remotes[rank]
			r.set.Ask(r.pair, func(begins bool) { open[rank] = question{r.note(begins), !begins} })
		}
	}
	return open
}

// collect waits for answers as ask does. Where a question was asked before, its answer may be older than this one, and
// the rank is asked once more.
func (g *Group) collect(open map[int]question, atMost time.Duration) (unanswered []int) {
	cause := g.cause.Load()
	until := time.Now().Add(atMost) // behind the questions: a rank that has not answered by then is silent
	for {
		for rank, q := range open {
			came := g.remotes[rank].states.Load() != q.before
			if !came && g.answers(rank) {
				continue
			}
			delete(open, rank)
			if came && q.stood {
				for rank, q := range g.question(rank) {
					open[rank] = question{q.before, false}
				}
			}
		}
		if len(open) == 0 || !time.Now().Before(until) || g.cause.Load() != cause {
			return slices.Sorted(maps.Keys(open))
		}
		time.Sleep(stateSlice)
	}
}

// answers reports whether a rank of another host lives and has not left.
func (g *Group) answers(rank int) bool {
	_, left := g.run.LastCall(rank)
	return !left && !g.life.isGone(rank)
}

// isSilent reports whether a rank of another host, which lives and has not left, has not answered a question for
// stateLimit, or there was no link to it although one has been wanted for long.
func (g *Group) isSilent(rank int) bool {
	r := g.remote(rank)
	return r != nil && r.unanswered() && g.answers(rank)
}

// isUnmet reports whether there was no link in time to a rank of another host that was asked: it lives and has not
// left, and nothing is known of it. A rank with a link that has answered before, and is asked again, is known.
func (g *Group) isUnmet(rank int) bool {
	r := g.remote(rank)
	if r == nil || !g.makesLinks() || !r.isOpen() || r.unanswered() || !g.answers(rank) {
		return false
	}
	_, wanted := r.pair.Wanted()
	return wanted || r.states.Load() == 0
}

// note notes a question that begins, or one that stands, and returns how many states have come before it.
// Requires: no state comes meanwhile.
func (r *remoteControl) note(begins bool) int64 {
	r.question.Lock()
	defer r.question.Unlock()
	r.question.before = r.states.Load()
	if begins {
		r.question.at = time.Now()
	}
	return r.question.before
}

// noteMade notes that the pair is made: a question that had to wait for the link begins now.
// Requires: no state comes meanwhile.
func (r *remoteControl) noteMade() {
	r.question.Lock()
	defer r.question.Unlock()
	if !r.question.at.IsZero() {
		r.question.at = time.Now()
	}
}

// isOpen reports whether a question has no answer.
func (r *remoteControl) isOpen() bool {
	r.question.Lock()
	defer r.question.Unlock()
	return !r.question.at.IsZero() && r.states.Load() == r.question.before
}

// unanswered reports whether a question has been without an answer for stateLimit, although the link to the rank is
// there or has been wanted for long.
func (r *remoteControl) unanswered() bool {
	if waited, wanted := r.pair.Wanted(); wanted && waited < time.Duration(neededWait.Load()) {
		return false
	}
	r.question.Lock()
	defer r.question.Unlock()
	return !r.question.at.IsZero() && r.states.Load() == r.question.before && time.Since(r.question.at) >= stateLimit
}

// followRemotes compares the calls of this rank with those of a rank on another host for which it waits, while
// operations do not go on, until the group has a cause. Where no data moves between two ranks that have made different
// calls, neither of them finds out by itself. The comparisons become rarer than the first one, because a rank may wait
// for long. Where a vendor's library moves the data, different calls may well end, so there it compares while
// operations go on, too, at the given period. It is a goroutine of the group.
func (g *Group) followRemotes(first, period time.Duration) {
	defer recoverFrom("the comparison of calls between hosts")
	before, every := "", first
	stalls, streams := time.NewTimer(every), time.NewTicker(period)
	defer stalls.Stop()
	defer streams.Stop()
	compared := uint64(0)
	var r blockLooks
	for {
		select {
		case <-g.announced:
			return
		case <-streams.C:
			if calls := g.libraryCalls(); calls > compared {
				g.guard(func() {
					if g.compareStreams(&r) {
						compared = calls
					}
				})
			}
			continue
		case <-stalls.C:
		}
		if now := g.unfinishedNow(); now == "" || now != before {
			before, every = now, first
			stalls.Reset(every)
			continue
		}
		more := false
		g.guard(func() { more = g.compareStalled(&r) })
		if more {
			stalls.Reset(min(every, nextLook))
			continue
		}
		every = min(2*every, compareSeldom)
		stalls.Reset(every)
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

// libraryCalls returns the number of the last collective that this rank has recorded in the device lane if a vendor's
// library carries collectives out, else 0.
func (g *Group) libraryCalls() uint64 {
	if !g.life.acquire() {
		return 0
	}
	defer g.life.release()
	if d := g.device.Load(); d != nil && g.throughLibrary() {
		last, _ := d.run.LastCall(g.rank)
		return last
	}
	return 0
}

// compareStreams declares a mismatch if calls that a vendor's library carries out differ from those of ranks on other
// hosts: of neighbors, and of some of those with which it may have exchanged blocks since. It reports whether all of them
// have answered behind the calls of this one, or will not any more.
func (g *Group) compareStreams(r *blockLooks) bool {
	if !g.life.acquire() {
		return true
	}
	defer g.life.release()
	missing, _ := r.look(diagnosis{g, g.device.Load().run})
	return !missing && len(r.open) == 0
}

// compareStalled declares a mismatch if the calls of a rank on another host, for which an operation of this rank may
// wait, differ from this one's. Where streams wait for streams in a vendor's library, those of this rank may wait for
// any: the neighbors stand for all, but for blocks of an all_to_all, which only the ranks of a pair know. It reports
// whether ranks that answer are still to be asked for these.
func (g *Group) compareStalled(r *blockLooks) (more bool) {
	if !g.life.acquire() {
		return false
	}
	defer g.life.release()
	for _, l := range g.lanes() {
		d := diagnosis{g, l.run}
		switch {
		case l.run.Unfinished() == 0 || g.cause.Load() != nil:
		case d.throughLibraryHere():
			_, more = r.look(d)
		default:
			d.compare(d.waitsFor())
		}
	}
	return more
}

// compare declares a mismatch if the calls of a rank on another host differ from this one's. It returns the ranks that
// have not answered. Requires: the group is acquired.
func (g diagnosis) compare(others []int) (unanswered []int) {
	unanswered = g.ask(stateLimit, others...)
	for _, rank := range others {
		g.compareWith(rank)
	}
	return unanswered
}

// compareWith declares a mismatch if what is known of the calls of another rank differs from this one's, and the group
// has no cause. Requires: the group is acquired.
func (g diagnosis) compareWith(rank int) {
	if g.cause.Load() != nil {
		return
	}
	if f := g.differsFrom(rank); f != nil {
		g.declareFailure(f)
	}
}

// waitsFor returns the rank of another host for which this rank waits, if there is one.
func (g diagnosis) waitsFor() []int {
	if awaited, _ := g.awaitedBy(g.rank, time.Now().Add(stateLimit)); awaited >= 0 && g.isRemote(awaited) {
		return []int{awaited}
	}
	return nil
}

// neighbors returns a rank of the next host and one of the host before, in a circle of all hosts. A hash covers all
// calls so far, so where two ranks have made different ones, two hosts that are neighbors have, or two ranks of one
// host, which find it in shared memory. Each rank of both asks one of the other host: the last one that makes the call
// finds all others with theirs. Ranks of a host ask different ranks as far as there are some.
func (g *Group) neighbors() (list []int) {
	here, n := g.hostOf[g.rank], len(g.hosts)
	at := slices.Index(g.hosts[here], g.rank)
	for _, host := range []int{(here + 1) % n, (here + n - 1) % n} {
		if ranks := g.hosts[host]; host != here {
			list = append(list, ranks[at%len(ranks)])
		}
	}
	return slices.Compact(list)
}

// differsFrom returns the failure of the first call in which this rank and another one differ, nil if they know of
// none.
func (g diagnosis) differsFrom(rank int) *coll.Failure {
	t := runner.Incident{Code: runner.Mismatch, Peer: rank}
	call, _, found := g.difference(rank, min(g.last(g.rank), g.last(rank)))
	u, unfit := g.run.Unfit(rank)
	switch {
	case found:
		t.Sequence, t.Op = call.Sequence, call.Op
		return g.mismatch(t)
	case unfit:
		t.Sequence = u.Sequence
		return g.blocksUnfit(t)
	}
	return nil
}
