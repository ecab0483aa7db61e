package pgbackend

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file finds the culprit of a timeout among the ranks of a group: the rank that does not go on, and none that waits for it. What is known
// of ranks of this host lies in shared memory. Ranks of other hosts are asked (remote_state.go), and one that does not answer is silent: all that
// is known of it is how far it was at least (docs/protocol.md, section 16, What a silent rank may be).

// evidence is what a rank knows of the ranks of its group.
type evidence struct {
	rank, size int
	last       func(rank int) uint64 // the number of the last collective that a rank has begun
	consumed   func(rank int) uint64 // how much a rank has taken of what others have published
	silent     func(rank int) bool
	awaitedBy  func(rank int, until time.Time) int
}

// evidence returns what is known of the lane.
func (g diagnosis) evidence() evidence {
	return evidence{g.rank, g.size, g.last, g.run.Consumed, g.isSilent, g.awaitedBy}
}

// silentRanks returns the ranks that do not answer.
func (e evidence) silentRanks() (list []int) {
	for rank := range e.size {
		if rank != e.rank && e.silent(rank) {
			list = append(list, rank)
		}
	}
	return list
}

// absent returns the ranks that have not begun a collective, and the culprit, which comes first if it is one of them. awaited is the rank that
// this rank waits for. The culprit is the furthest behind, and the others may wait for it in an earlier collective. How far a silent rank is, is
// not known, so it counts as the culprit if all others wait. -1: that cannot be told apart.
func (e evidence) absent(sequence uint64, awaited int) (list []int, culprit int) {
	for rank := range e.size {
		if rank != e.rank && e.last(rank) < sequence {
			list = append(list, rank)
		}
	}
	switch {
	case len(list) == 0:
		return nil, -1
	case len(list) == 1 && len(e.silentRanks()) == 0:
		return list, list[0]
	}
	culprit = e.absentCulprit(list, awaited)
	if i := slices.Index(list, culprit); i >= 0 {
		list = append([]int{culprit}, slices.Delete(list, i, i+1)...)
	}
	return list, culprit
}

func (e evidence) absentCulprit(list []int, awaited int) int {
	known := slices.DeleteFunc(slices.Clone(list), e.silent)
	if len(known) == 0 {
		if len(list) == 1 {
			return list[0]
		}
		if end, _ := e.end(awaited); end >= 0 && e.silent(end) {
			return end
		}
		return -1
	}
	first := slices.MinFunc(known, func(a, b int) int { return cmp.Compare(e.last(a), e.last(b)) })
	held := e.behind(first)
	if held < 0 || e.silent(held) || slices.Contains(known, held) && e.last(held) == e.last(first) {
		return held
	}
	return first
}

// behind returns the rank that holds up a collective which all ranks have begun. The awaited rank may itself sleep for
// another rank, down to the one that does not go on, and no rank that waits can be further back than that one. If even that one waits, and one
// rank is silent, it is that. -1: several are.
func (e evidence) behind(awaited int) int {
	end, waits := e.end(awaited)
	if e.silent(end) {
		return end
	}
	furthest, least := end, e.consumed(end)
	for rank := range e.size {
		if n := e.consumed(rank); n < least && !e.silent(rank) {
			furthest, least = rank, n
		}
	}
	silent := e.silentRanks()
	if len(silent) == 0 {
		return furthest
	}
	if furthest != end {
		waits = furthest == e.rank || e.awaitedBy(furthest, time.Now().Add(awakeFor)) >= 0
	}
	switch {
	case !waits:
		return furthest
	case len(silent) == 1:
		return silent[0]
	default:
		return -1
	}
}

// end follows who awaits whom, from an awaited rank on. It returns a rank that is silent, or awaits nobody, or waits for one that was met before.
func (e evidence) end(awaited int) (rank int, waits bool) {
	seen := make([]bool, e.size)
	seen[e.rank] = true
	until := time.Now().Add(awakeFor)
	rank, waits = awaited, awaited == e.rank
	for next := awaited; next >= 0; next = e.awaitedBy(next, until) {
		if seen[next] {
			return rank, true
		}
		seen[next], rank = true, next
		if e.silent(next) {
			break
		}
	}
	return rank, waits
}

// awaitedBy returns the rank that a rank sleeps for, or -1. It looks again until the given
// time, because a rank that waits for long wakes up from time to time. A rank of another host is asked again, because what it has told is how it
// was at one moment, until it does not answer.
// Requires: the group is acquired.
func (g diagnosis) awaitedBy(rank int, until time.Time) int {
	for ; ; time.Sleep(200 * time.Microsecond) {
		if next := g.run.Awaits(rank); next >= 0 || time.Now().After(until) || g.isSilent(rank) {
			return next
		}
		if g.remote(rank) != nil {
			g.ask(until, rank)
		}
	}
}

// awakeFor is longer than a waiting rank stays awake, even on a busy machine.
const awakeFor = 200 * time.Millisecond

// standsStill is the end of a sentence about a collective that all ranks have begun. rank is what behind has returned.
func (g diagnosis) standsStill(rank int) string {
	if rank >= 0 && !g.isSilent(rank) {
		return g.who(rank) + " does not go on"
	}
	if rank >= 0 {
		return g.who(rank) + " does not go on, nor answer: it may be stopped, or its host busy"
	}
	var names []string
	for _, rank := range g.evidence().silentRanks() {
		names = append(names, g.who(rank))
	}
	return fmt.Sprintf("%s do not answer: they may be stopped, or their hosts busy", strings.Join(names, " and "))
}
