package pgbackend

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/runner"
)

// This file finds the culprit of a timeout among the ranks of a group: the rank that does not go on, and none that
// waits for it. What is known of ranks of this host lies in shared memory. Ranks of other hosts are asked
// (remote_state.go), and one that does not answer is silent: all that is known of it is how far it was at least
// (docs/protocol.md, section 16, What a silent rank may be).

// evidence is what a rank knows of the ranks of its group at the moment of a diagnosis. List, culprit and text of an
// error are made from one evidence, so they agree.
type evidence struct {
	rank, size int
	library    bool      // a vendor's library carries operations out: a rank that waits for its own device may wait for any other rank
	until      time.Time // the end of the diagnosis
	last       []uint64  // by rank: the number of the last collective that it has begun
	silent     []bool    // by rank: it does not answer. A search may find more of them.
	unmet      []bool    // by rank: such a one to which there was no link in time, so nothing is known of it; nil: there is none
	gone       []bool    // by rank of another host: it has left, and how much it has taken is not known

	consumed  func(rank int) uint64 // how much a rank has taken of what others have published
	awaitedBy func(rank int, until time.Time) (awaited int, silent bool)
}

// evidence returns what is known of the lane, where no library carries operations out. Ranks of other hosts have been
// asked before.
func (g diagnosis) evidence(until time.Time) evidence {
	e := evidence{rank: g.rank, size: g.size, until: until, last: make([]uint64, g.size), silent: make([]bool, g.size), gone: make([]bool, g.size),
		unmet: make([]bool, g.size), consumed: g.run.Consumed, awaitedBy: g.awaitedBy}
	for rank := range e.size {
		_, left := g.run.LastCall(rank)
		e.gone[rank] = left && g.isRemote(rank)
		e.unmet[rank] = g.isUnmet(rank)
		e.silent[rank] = e.unmet[rank] || g.isSilent(rank) // before last: of one that leaves now, last is exact
		e.last[rank] = g.begun(rank)
	}
	return e
}

// throughLibraryHere reports whether a vendor's library carries out collectives of the lane.
func (g diagnosis) throughLibraryHere() bool {
	return g.run.Lane() == runner.DeviceLane && g.throughLibrary()
}

// silentRanks returns the ranks that do not answer.
func (e evidence) silentRanks() (list []int) {
	for rank, silent := range e.silent {
		if silent {
			list = append(list, rank)
		}
	}
	return list
}

// isUnmet reports whether there was no link to a rank in time. Such a rank is never the culprit: it may have done all
// that it is to do.
func (e evidence) isUnmet(rank int) bool { return e.unmet != nil && e.unmet[rank] }

// unmetPeer reports whether nothing is known of the peer of a p2p operation, since there was no link to it in time.
func (e evidence) unmetPeer(t runner.Incident) bool {
	return t.Peer >= 0 && !t.Sent && !t.Op.OfSparse() && e.isUnmet(t.Peer)
}

func (e evidence) anyUnmet() bool { return slices.Contains(e.unmet, true) }

// all is the begin of a sentence about what all ranks have done, as far as that is known.
func (e evidence) all() string {
	if e.anyUnmet() { // the sentence names them
		return "all other ranks"
	}
	return "all ranks"
}

// silentOf returns those of ranks that do not answer.
func (e evidence) silentOf(ranks []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(rank int) bool { return !e.silent[rank] })
}

// absent returns the ranks that have not begun a collective, but for those of which nothing is known, and the culprit,
// which comes first if it is one of them. awaited is the rank that this rank waits for, or -1: its own operation has
// not started, so it waits for none. The culprit is the furthest behind, and the others may wait for it in an earlier
// collective. How far a silent rank is, is not known, so it counts as the culprit if all others wait. -1: that cannot
// be told apart.
func (e evidence) absent(sequence uint64, awaited int) (list []int, culprit int) {
	for rank := range e.size {
		if rank != e.rank && e.last[rank] < sequence && !e.isUnmet(rank) {
			list = append(list, rank)
		}
	}
	if len(list) == 0 {
		return nil, -1
	}
	return e.firstOf(list, awaited)
}

// firstOf returns ranks that have not arrived with the culprit in front, if it is one of them, and the culprit.
func (e evidence) firstOf(list []int, awaited int) (sorted []int, culprit int) {
	if len(list) == 1 && len(e.silentRanks()) == 0 {
		return list, list[0]
	}
	culprit = e.absentCulprit(list, awaited)
	if i := slices.Index(list, culprit); i >= 0 {
		list = append([]int{culprit}, slices.Delete(list, i, i+1)...)
	}
	return list, culprit
}

func (e evidence) absentCulprit(list []int, awaited int) int {
	known := slices.DeleteFunc(slices.Clone(list), func(rank int) bool { return e.silent[rank] })
	if len(known) == 0 {
		if len(list) == 1 && !e.anyUnmet() {
			return list[0]
		}
		if end, _ := e.end(awaited); end >= 0 && e.silent[end] && !e.isUnmet(end) {
			return end
		}
		return -1
	}
	first := slices.MinFunc(known, func(a, b int) int { return cmp.Compare(e.last[a], e.last[b]) })
	held := e.behind(first, list)
	if held < 0 || e.silent[held] || slices.Contains(known, held) && e.last[held] == e.last[first] {
		return held
	}
	return first
}

// behind returns the rank that holds up a collective which all ranks have begun. The awaited rank may itself sleep for
// another rank, down to the one that does not go on, and no rank that waits can be further back than that one. If even
// that one waits, and one rank of suspects, nil for all ranks, is silent, it is that. -1: several are, or it may be one
// of which nothing is known. Nothing leads to a silent rank that is no suspect.
func (e evidence) behind(awaited int, suspects []int) int {
	end, waits := e.end(awaited)
	switch {
	case e.isUnmet(end):
		return -1
	case e.silent[end]:
		return end
	}
	furthest, least := end, e.consumed(end)
	for rank := range e.size {
		if n := e.consumed(rank); n < least && !e.silent[rank] && !e.gone[rank] {
			furthest, least = rank, n
		}
	}
	if len(e.silentRanks()) == 0 {
		return furthest
	}
	if furthest != end {
		waits = furthest == e.rank || e.sleeps(furthest, e.awaits(furthest, e.searchEnd()))
		if e.silent[furthest] {
			return furthest
		}
	}
	silent := e.silentRanks()
	if suspects != nil {
		silent = e.silentOf(suspects)
	}
	switch {
	case waits && e.anyUnmet():
		return -1
	case !waits || len(silent) == 0:
		return furthest
	case len(silent) == 1:
		return silent[0]
	default:
		return -1
	}
}

// end follows who awaits whom, from an awaited rank on. It returns a rank that is silent, or awaits nobody, or waits
// for one that was met before, or perhaps for one that is unknown. If this rank awaits none, it is the one that does
// not go on.
func (e evidence) end(awaited int) (rank int, waits bool) {
	if awaited < 0 {
		return e.rank, false
	}
	seen := make([]bool, e.size)
	seen[e.rank] = true
	until := e.searchEnd()
	rank = awaited
	next := awaited
	for next >= 0 && !seen[next] {
		seen[next], rank = true, next
		if e.silent[next] {
			return rank, false
		}
		next = e.awaits(next, until)
	}
	return rank, e.sleeps(rank, next)
}

// searchEnd returns until when a search that begins now looks for ranks that sleep.
func (e evidence) searchEnd() time.Time {
	if until := time.Now().Add(awakeFor); until.Before(e.until) {
		return until
	}
	return e.until
}

// awaits returns the rank that a rank sleeps for, or -1, or unknown, and takes note of one that does not answer.
func (e evidence) awaits(rank int, until time.Time) int {
	awaited, silent := e.awaitedBy(rank, until)
	e.silent[rank] = e.silent[rank] || silent
	return awaited
}

// sleeps reports whether a rank that awaits a rank waits for another one. One that awaits its own device does not: no
// other rank keeps that busy, unless a library moves the data. One of which that is unknown may sleep.
func (e evidence) sleeps(rank, awaited int) bool {
	return awaited == unknown || awaited >= 0 && (awaited != rank || e.library)
}

// unknown stands for the rank that a rank of another host sleeps for, if that rank has answered no question of a
// search.
const unknown = -2

// awaitedBy returns the rank that a rank sleeps for, or -1, or unknown, and whether the rank does not answer. It looks
// again until the given time, because a rank that waits for long wakes up from time to time. A rank of another host is
// asked again, because what it has told is how it was at one moment, ever more seldom, because each rank of the group
// may ask it. It ends early when the group gets another cause, and where nobody can answer. Requires: the group is
// acquired.
func (g diagnosis) awaitedBy(rank int, until time.Time) (awaited int, silent bool) {
	cause := g.cause.Load()
	r, before := g.remote(rank), int64(0)
	if r != nil {
		before = r.states.Load()
	}
	for pause := time.Duration(0); ; {
		if r != nil && !g.answers(rank) {
			return -1, false
		}
		answered := r == nil || r.states.Load() != before
		awaited, silent = g.run.Awaits(rank), g.isSilent(rank)
		switch over := !time.Now().Before(until) || g.cause.Load() != cause; {
		case awaited < 0 && !silent && over && !answered:
			return unknown, false
		case awaited >= 0 || silent || over:
			return awaited, silent
		}
		if r == nil {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		time.Sleep(min(pause, time.Until(until)))
		if left := time.Until(until); left > 0 {
			g.ask(left, rank)
		}
		pause = min(max(2*pause, time.Millisecond), longestAskPause)
	}
}

// awakeFor is longer than a waiting rank stays awake, even on a busy machine. Tests change it.
var awakeFor = 200 * time.Millisecond

// standsStill is the end of a sentence about what all ranks have begun. rank is the one that holds it up, or -1 if it
// is one of several that do not answer.
func (g diagnosis) standsStill(e evidence, rank int, silent []int) string {
	if e.anyUnmet() {
		silent = slices.DeleteFunc(slices.Clone(silent), e.isUnmet)
		text := fmt.Sprintf("of %s that is not known", g.unmet(e))
		e.unmet = nil
		if rank < 0 && len(silent) == 0 {
			return text
		}
		return text + "; " + g.standsStill(e, rank, silent)
	}
	switch {
	case rank >= 0 && e.silent[rank]:
		return g.who(rank) + " does not go on, nor answer: it may be stopped, or its host busy"
	case rank >= 0:
		return g.who(rank) + " does not go on"
	}
	names := make([]string, len(silent))
	for i, rank := range silent {
		names[i] = g.who(rank)
	}
	if len(names) == 1 {
		return names[0] + " does not answer: it may be stopped, or its host busy"
	}
	return strings.Join(names, " and ") + " do not answer: they may be stopped, or their hosts busy"
}

// unmet names ranks to which there was no link in time, the first 8 of them with their processes.
func (g diagnosis) unmet(e evidence) string {
	var known, others []string
	for rank := range e.size {
		switch {
		case !e.isUnmet(rank):
		case len(known) < 8:
			known = append(known, g.who(rank))
		default:
			others = append(others, strconv.Itoa(rank))
		}
	}
	text := strings.Join(known, ", ")
	if len(others) > 0 {
		text += ", and rank " + strings.Join(others, ", ")
	}
	if len(known) == 1 {
		return text + ", to which no link was made in time,"
	}
	return text + ", to which no links were made in time,"
}

// unknownOf is the end of a sentence about what ranks have done, "" where that is known of all.
func (g diagnosis) unknownOf(e evidence) string {
	if !e.anyUnmet() {
		return ""
	}
	return fmt.Sprintf("; of %s that is not known", g.unmet(e))
}

// notArrived is the end of a sentence about ranks that have not arrived. culprit is what absent has returned.
func (g diagnosis) notArrived(e evidence, absent []int, culprit int) string {
	text := "not arrived: " + g.lastCalls(e, absent) + g.unknownOf(e)
	if culprit < 0 || slices.Contains(absent, culprit) {
		return text
	}
	wait := "they wait"
	if len(absent) == 1 {
		wait = "it waits"
	}
	return fmt.Sprintf("%s; %s for %s, which does not answer: it may be stopped, or its host busy", text, wait, g.who(culprit))
}
