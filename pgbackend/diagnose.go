package pgbackend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file says what a incident means that the runner has met: who is to blame, and how that is worded.

// who names a rank, its host and its process.
func (g *Group) who(rank int) string {
	if rank < 0 || rank >= len(g.members) {
		return fmt.Sprintf("rank %d", rank)
	}
	m := g.members[rank]
	return fmt.Sprintf("rank %d (host %s, pid %d)", rank, m.Host, m.PID)
}

// failureOf begins a failure for which one rank answers.
func (g *Group) failureOf(status coll.Status, rank int, t runner.Incident) *coll.Failure {
	f := &coll.Failure{Status: status, Rank: rank, Sequence: t.Sequence, Op: t.Op.Name(), Group: g.name}
	if rank >= 0 && rank < len(g.members) {
		f.PID, f.Host = g.members[rank].PID, g.members[rank].Host
	}
	return f
}

func (g *Group) diagnose(t runner.Incident) *coll.Failure {
	switch t.Code {
	case runner.Mismatch:
		return g.mismatch(t)
	case runner.Timeout:
		return g.timeout(t)
	case runner.Left:
		if f := g.run.GaveUp(t.Peer); f != nil {
			return f
		}
		f := g.failureOf(coll.PeerFailure, t.Peer, t)
		last, _ := g.run.LastCall(t.Peer)
		f.Message = fmt.Sprintf("sagecomm: group %q: Connection closed by peer: %s has left the group after collective #%d, and rank %d needs it in %s; if its log shows an exception, look there for the reason, else let all ranks make the same calls before any of them destroys the group or ends",
			g.name, g.who(t.Peer), last, g.rank, t.Op.Describe(t.Sequence))
		return f
	case runner.Length:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d called %s, but %s sent a message of %d bytes; make both sides agree",
			g.name, g.rank, t.Op.Describe(0), g.who(t.Peer), t.Got)
		return f
	case runner.WrongType:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d called %s, but %s sent elements of %v; make both sides agree",
			g.name, g.rank, t.Op.Describe(0), g.who(t.Peer), coll.DataType(t.Got))
		return f
	case runner.Split:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d expects %d bytes from %s in all_to_all #%d, which sends it %d; the input splits of one rank must be the output splits of the others",
			g.name, g.rank, t.Want, g.who(t.Peer), t.Sequence, t.Got)
		return f
	case runner.Garbage:
		if t.Op.Kind.Collective() {
			return g.garbageIn(t, "place of its slots")
		}
		return g.garbage(t, fmt.Sprintf("message, where rank %d looks for one", g.rank))
	case runner.BadLongest:
		return g.garbageIn(t, "length of its longest block")
	case runner.BadChannel:
		return g.garbageIn(t, fmt.Sprintf("place of its channel %d to rank %d", t.Got, g.rank))
	case runner.BadMessage:
		return g.garbageIn(t, fmt.Sprintf("message of its channel %d to rank %d", t.Got, g.rank))
	case runner.BadTaken:
		return g.garbageIn(t, fmt.Sprintf("count of messages that it has taken from channel %d of rank %d", t.Got, g.rank))
	case runner.Uneven:
		f := g.failureOf(coll.System, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s called all_to_all #%d with blocks of different lengths, and SAGECOMM_TUNE names an algorithm that takes equal ones only; name another one there, or none", g.name, g.who(g.rank), t.Sequence)
		return f
	case runner.NoMemory:
		if t.Op.Kind.Collective() {
			return g.system(t.Op, errors.New("there is no memory for what it keeps between its steps"))
		}
		f := g.failureOf(coll.System, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d has no memory for a message from %s; free memory there, or post recvs before so many messages are sent", g.name, g.rank, g.who(t.Peer))
		return f
	case runner.FailureWord:
		// Something is declared, but not by a rank: the word names none. It lies in the memory of rank 0.
		f := g.failureOf(coll.Internal, 0, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: the word for a failure in the memory of %s names no rank; its process, or that of another rank, has written where it should not: look for stray pointers there",
			g.name, g.who(0))
		return f
	default:
		f := g.failureOf(coll.Internal, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d met a state that cannot be (code %d) in %s", g.name, g.rank, t.Code, t.Op.Describe(t.Sequence))
		return f
	}
}

// garbage is a failure because of what a peer's memory holds and no rank writes.
func (g *Group) garbage(t runner.Incident, what string) *coll.Failure {
	f := g.failureOf(coll.Internal, t.Peer, t)
	f.Message = fmt.Sprintf("sagecomm: group %q: %s wrote something that is no %s; its process, or that of another rank, has written where it should not: look for stray pointers there",
		g.name, g.who(t.Peer), what)
	return f
}

// garbageIn is one in a collective.
func (g *Group) garbageIn(t runner.Incident, what string) *coll.Failure {
	return g.garbage(t, fmt.Sprintf("%s, which rank %d needs in %s", what, g.rank, t.Op.Describe(t.Sequence)))
}

// announced describes a call as a rank announced it.
func announced(a runner.Announced) string {
	text := a.Op.Describe(0)
	if a.Uneven {
		text += " with blocks of different lengths"
	}
	return text
}

// mismatch finds the first call in which this rank and the peer parted, going back as far as both remember.
func (g *Group) mismatch(t runner.Incident) *coll.Failure {
	f := g.failureOf(coll.Mismatch, t.Peer, t)
	for seq := max(t.Sequence, 63) - 62; seq <= t.Sequence; seq++ {
		mine, ok := g.run.Announced(g.rank, seq)
		theirs, known := g.run.Announced(t.Peer, seq)
		if ok && known && mine.Hash != theirs.Hash {
			f.Sequence, f.Op = seq, mine.Op.Name()
			low, high := fmt.Sprintf("rank %d called %s", g.rank, announced(mine)), fmt.Sprintf("rank %d called %s", t.Peer, announced(theirs))
			if t.Peer < g.rank {
				low, high = high, low
			}
			f.Message = fmt.Sprintf("sagecomm: group %q: ranks disagree in collective #%d: %s, %s; every rank must make the same calls in the same order",
				g.name, seq, low, high)
			return f
		}
	}
	mine, ok := g.run.Announced(g.rank, t.Sequence)
	if theirs, known := g.run.Announced(t.Peer, t.Sequence); ok && known && mine.Hash == theirs.Hash {
		// Calls that are alike up to this one have the same hash everywhere: what lies in a slot of the peer is none.
		return g.garbage(t, fmt.Sprintf("mark of its calls, which rank %d compares in %s", g.rank, t.Op.Describe(t.Sequence)))
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: the calls of ranks %d and %d differ before collective #%d, further back than both remember; every rank must make the same calls in the same order",
		g.name, g.rank, t.Peer, t.Sequence)
	return f
}

// timeout names the ranks that have not arrived and what each did last. Users' programs look for words of torch's backends:
// "timed out after" and " timeout " here, "Connection closed by peer" where a rank has left or died.
func (g *Group) timeout(t runner.Incident) *coll.Failure {
	f := g.failureOf(coll.Timeout, t.Peer, t)
	if !t.Op.Kind.Collective() {
		why := fmt.Sprintf("the other side has not called its part; its last collective is #%d", g.last(t.Peer))
		if t.Op.OfSparse() {
			why = fmt.Sprintf("all ranks have arrived, but %s does not go on", g.who(t.Peer))
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: rank %d timed out after its timeout of %v in %s: %s", g.name, g.rank, t.Timeout, t.Op.Describe(0), why)
		return f
	}
	var what string
	if absent := g.absent(t.Sequence); len(absent) == 0 {
		behind := g.behind(t.Peer)
		*f = *g.failureOf(coll.Timeout, behind, t)
		what = "all ranks have arrived, but " + g.who(behind) + " does not go on"
	} else {
		*f = *g.failureOf(coll.Timeout, absent[0], t)
		what = "not arrived: " + g.whatTheyDid(absent)
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: rank %d timed out after its timeout of %v in %s; %s", g.name, g.rank, t.Timeout, t.Op.Describe(t.Sequence), what)
	return f
}

// absent are the ranks that have not come to a collective, the one that holds them up first: it is the furthest behind, and
// others may not have come because they wait for it in a collective before.
func (g *Group) absent(sequence uint64) []int {
	var list []int
	for rank := range g.size {
		if rank != g.rank && g.last(rank) < sequence {
			list = append(list, rank)
		}
	}
	if len(list) < 2 {
		return list
	}
	first := slices.MinFunc(list, func(a, b int) int { return cmp.Compare(g.last(a), g.last(b)) })
	if held := g.behind(first); slices.Contains(list, held) && g.last(held) == g.last(first) {
		first = held
	}
	return append([]int{first}, slices.DeleteFunc(list, func(rank int) bool { return rank == first })...)
}

// whatTheyDid says it of 8 ranks, and of the others who they are.
func (g *Group) whatTheyDid(ranks []int) string {
	var known, others []string
	for _, rank := range ranks {
		if len(known) == 8 {
			others = append(others, strconv.Itoa(rank))
			continue
		}
		last, did := g.last(rank), "has called no collective yet"
		if call, ok := g.run.Announced(rank, last); ok {
			did = "last called " + call.Op.Describe(last)
		}
		known = append(known, g.who(rank)+" "+did)
	}
	text := strings.Join(known, "; ")
	if len(others) > 0 {
		text += "; and rank " + strings.Join(others, ", ")
	}
	return text
}

// behind is the rank that holds up a collective in which all have begun. The one that is awaited may sleep for another
// one itself, down to the one that does not go on; and none of those that wait can be further back than that.
func (g *Group) behind(awaited int) int {
	seen := make([]bool, g.size)
	seen[g.rank] = true
	until := time.Now().Add(awakeFor)
	for next := awaited; next >= 0 && !seen[next]; next = g.awaitedBy(next, until) {
		seen[next] = true
		awaited = next
	}
	least := g.run.Consumed(awaited)
	for rank := range g.size {
		if n := g.run.Consumed(rank); n < least {
			awaited, least = rank, n
		}
	}
	return awaited
}

// awaitedBy is the rank that a rank sleeps for, -1 if it does not. It is asked for a while: who waits for long is awake from
// time to time.
func (g *Group) awaitedBy(rank int, until time.Time) int {
	for ; ; time.Sleep(200 * time.Microsecond) {
		if next := g.run.Awaits(rank); next >= 0 || time.Now().After(until) {
			return next
		}
	}
}

// awakeFor is longer than a rank that waits stays awake, on a machine that has more to do as well.
const awakeFor = 200 * time.Millisecond

func (g *Group) last(rank int) uint64 {
	if rank < 0 || rank >= g.size {
		return 0
	}
	last, _ := g.run.LastCall(rank)
	return last
}
