package pgbackend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// This file diagnoses incidents: it finds out why the runner cannot go on with an operation and which rank is the
// culprit, and words the error.

// diagnosis is the diagnosis of an incident in one lane of a group.
type diagnosis struct {
	*Group
	run *runner.Group // of the lane; it hides that of Group, which is the host lane's
}

// title returns the name of the group in errors: the user's description, or the group's name if there is none.
func (g *Group) title() string {
	switch text := g.describedAs(); text {
	case observe.NoDescription, "default_pg": // torch's descriptions of a group that its user did not describe
		return g.name
	default:
		return text
	}
}

// who names a rank with its global rank (if that differs), its host and its process.
func (g *Group) who(rank int) string {
	if rank < 0 || rank >= len(g.members) {
		return g.number(rank)
	}
	return fmt.Sprintf("rank %d (%s)", rank, g.where(rank))
}

// where returns the part of who in parentheses.
func (g *Group) where(rank int) string {
	m := g.members[rank]
	text := fmt.Sprintf("host %s, pid %d", m.Host, m.PID)
	if global := g.globalRank(rank); global != rank {
		text = fmt.Sprintf("global rank %d, ", global) + text
	}
	return text
}

// number names a rank without its host and process: "rank 1", or "rank 1 (global rank 2)" where the numbers differ.
func (g *Group) number(rank int) string {
	if global := g.globalRank(rank); global != rank {
		return fmt.Sprintf("rank %d (global rank %d)", rank, global)
	}
	return fmt.Sprintf("rank %d", rank)
}

// failureOf returns a failure of an incident's operation with a rank as its culprit. The caller adds the message.
func (g *Group) failureOf(status coll.Status, rank int, t runner.Incident) *coll.Failure {
	f := &coll.Failure{Status: status, Rank: rank, Sequence: t.Sequence, Op: t.Op.Name(), Group: g.name}
	if rank >= 0 && rank < len(g.members) {
		f.PID, f.Host = g.members[rank].PID, g.members[rank].Host
	}
	return f
}

// failureOf returns a failure of an incident in the lane.
func (g diagnosis) failureOf(status coll.Status, rank int, t runner.Incident) *coll.Failure {
	f := g.Group.failureOf(status, rank, t)
	f.OnDevice = g.run.Lane() == runner.DeviceLane
	return f
}

// diagnose returns the failure that explains an incident, soon after the given time at the latest.
func (g diagnosis) diagnose(t runner.Incident, until time.Time) *coll.Failure {
	switch t.Code {
	case runner.Mismatch:
		return g.mismatch(t)
	case runner.Timeout:
		e := g.evidence(until)
		e.library = g.throughLibraryHere()
		return g.timeout(e, t)
	case runner.Left:
		if f := g.run.GaveUp(t.Peer); f != nil {
			return f
		}
		f := g.failureOf(coll.PeerFailure, t.Peer, t)
		f.Message = g.hasLeft(t.Peer, t.Op.Describe(t.Sequence))
		return f
	case runner.Length:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s called %s, but %s sent %d bytes; make both sides agree",
			g.title(), g.number(g.rank), t.Op.Describe(0), g.who(t.Peer), t.Got)
		return f
	case runner.WrongType:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s called %s, but %s sent elements of %v; make both sides agree",
			g.title(), g.number(g.rank), t.Op.Describe(0), g.who(t.Peer), coll.DataType(t.Got))
		return f
	case runner.Split:
		f := g.failureOf(coll.Mismatch, t.Peer, t)
		f.Message = g.unfitText(t.Sequence, g.rank, t.Want, t.Peer, t.Got)
		return f
	case runner.BlocksUnfit:
		// Calls that differ come first. The record of one may have come behind its blocks.
		if call, _, found := g.difference(t.Peer, min(g.last(g.rank), g.last(t.Peer))); found {
			t.Sequence, t.Op = call.Sequence, call.Op
			return g.mismatch(t)
		}
		return g.blocksUnfit(t)
	case runner.Garbage:
		if t.Op.Kind.Collective() {
			return g.corruptedIn(t, "slot offset")
		}
		return g.corrupted(t, "an invalid p2p frame, needed by "+g.number(g.rank))
	case runner.BadLongest:
		return g.corruptedIn(t, "length of its longest block")
	case runner.BadChannel:
		return g.corruptedIn(t, fmt.Sprintf("offset of its channel %d to rank %d", t.Got, g.rank))
	case runner.BadMessage:
		return g.corruptedIn(t, fmt.Sprintf("message in its channel %d to rank %d", t.Got, g.rank))
	case runner.BadTaken:
		return g.corruptedIn(t, fmt.Sprintf("count of messages taken from channel %d of rank %d", t.Got, g.rank))
	case runner.Uneven:
		f := g.failureOf(coll.System, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s called all_to_all #%d with blocks of different lengths, and SAGECOMM_TUNE names an algorithm that takes equal ones only; name another one there, or none", g.title(), g.who(g.rank), t.Sequence)
		return f
	case runner.NoMemory:
		if t.Op.Kind.Collective() {
			return g.system(t.Op, errors.New("out of memory for its scratch buffer"))
		}
		f := g.failureOf(coll.System, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: %s has no memory for a p2p payload from %s; free memory there, or post recvs before so much is sent", g.title(), g.number(g.rank), g.who(t.Peer))
		return f
	case runner.FailureWord:
		// The word names no rank, so no rank has declared a failure.
		f := g.failureOf(coll.Internal, g.run.FailureRank(), t)
		f.Message = fmt.Sprintf("sagecomm: group %q: shared memory corrupted: the failure word in the memory of %s names no rank; %s",
			g.title(), g.who(g.run.FailureRank()), runner.StrayPointers)
		return f
	default:
		f := g.failureOf(coll.Internal, g.rank, t)
		f.Message = fmt.Sprintf("sagecomm: group %q: internal error: unexpected runner code %d in %s on %s; please report this",
			g.title(), t.Code, t.Op.Describe(t.Sequence), g.who(g.rank))
		return f
	}
}

// hasLeft words the failure for a rank that has left although this rank needs it in something.
func (g diagnosis) hasLeft(rank int, needed string) string {
	when := "before its first collective"
	if last := g.begun(rank); last > 0 {
		when = fmt.Sprintf("after collective #%d", last)
	}
	return fmt.Sprintf("sagecomm: group %q: Connection closed by peer: %s has left the group %s, and %s needs it in %s; if its log shows an exception, look there for the reason, else let all ranks make the same calls before any of them destroys the group or ends",
		g.title(), g.who(rank), when, g.number(g.rank), needed)
}

// corrupted returns the failure for a rank whose shared memory holds a value that no rank writes.
func (g diagnosis) corrupted(t runner.Incident, what string) *coll.Failure {
	f := g.failureOf(coll.Internal, t.Peer, t)
	f.Message = g.corruptedText(t.Peer, what)
	return f
}

func (g *Group) corruptedText(rank int, what string) string {
	return fmt.Sprintf("sagecomm: group %q: shared memory corrupted: %s wrote %s; %s", g.title(), g.who(rank), what, runner.StrayPointers)
}

// corruptedIn is corrupted for a collective.
func (g diagnosis) corruptedIn(t runner.Incident, what string) *coll.Failure {
	return g.corrupted(t, fmt.Sprintf("an invalid %s, needed by %s in %s", what, g.number(g.rank), t.Op.Describe(t.Sequence)))
}

// announced describes a call as a rank announced it.
func announced(a runner.Announced) string {
	text := a.Op.Describe(0)
	if a.Uneven {
		text += " with blocks of different lengths"
	}
	return text
}

// mismatch finds the first call in which this rank and the peer differ, as far back as both remember. External runs are
// compared when later ones than that of the incident are under way. Ranks whose calls are equal part only where one has
// read another number of steps than the other, out of memory that a third one has spoiled.
func (g diagnosis) mismatch(t runner.Incident) *coll.Failure {
	f := g.failureOf(coll.Mismatch, t.Peer, t)
	through := max(t.Sequence, min(g.last(g.rank), g.last(t.Peer)))
	mine, theirs, found := g.difference(t.Peer, through)
	if u, unfit := g.run.Unfit(t.Peer); unfit && (!found || u.Sequence < mine.Sequence) {
		return g.blocksUnfit(t)
	}
	if found {
		f.Sequence, f.Op = mine.Sequence, mine.Op.Name()
		low, high, one, other := g.rank, t.Peer, mine, theirs
		if high < low {
			low, high, one, other = high, low, other, one
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: ranks disagree in collective #%d: %s called %s, %s called %s; every rank must make the same calls in the same order (rank %d: %s; rank %d: %s)",
			g.title(), mine.Sequence, g.number(low), announced(one), g.number(high), announced(other), low, g.where(low), high, g.where(high))
		return f
	}
	last, ok := g.run.Announced(g.rank, through)
	if theirs, known := g.run.Announced(t.Peer, through); ok && known && last.Hash == theirs.Hash {
		// All calls up to this one are equal, so all ranks compute the same hash, and the hash in the peer's slot belongs to
		// no call.
		return g.corruptedIn(t, "hash of its calls")
	}
	if told := g.last(t.Peer); told > 0 && told < through && g.remote(t.Peer) == nil {
		mine, ok := g.run.Announced(g.rank, told)
		theirs, known := g.run.Announced(t.Peer, told)
		if ok && known && mine.Hash == theirs.Hash {
			f.Status, f.Rank, f.PID, f.Host = coll.Internal, -1, 0, "" // neither of the two is the culprit
			f.Message = fmt.Sprintf("sagecomm: group %q: shared memory corrupted: %s is in collective #%d and finds there a step of %s, which has called no more than #%d, and their calls are equal; a process has written where it should not: look for stray pointers in the processes of all ranks",
				g.title(), g.number(g.rank), through, g.who(t.Peer), told)
			return f
		}
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: the calls of ranks %d and %d differ before collective #%d, further back than both remember; every rank must make the same calls in the same order (rank %d: %s; rank %d: %s)",
		g.title(), g.rank, t.Peer, through, g.rank, g.where(g.rank), t.Peer, g.where(t.Peer))
	return f
}

// blocksUnfit is mismatch for an external all_to_all whose blocks do not fit between this rank and the peer. It finds the first one, as far back
// as both remember.
func (g diagnosis) blocksUnfit(t runner.Incident) *coll.Failure {
	t.Op = coll.Op{Kind: coll.AllToAll}
	u, found := g.run.Unfit(t.Peer)
	if found { // else both have written over it meanwhile
		t.Sequence = u.Sequence
	}
	f := g.failureOf(coll.Mismatch, t.Peer, t)
	switch {
	case u.PeerSent != u.Expected:
		f.Message = g.unfitText(u.Sequence, g.rank, u.Expected, t.Peer, u.PeerSent)
	case u.Sent != u.PeerExpected:
		f.Message = g.unfitText(u.Sequence, t.Peer, u.PeerExpected, g.rank, u.Sent)
	default:
		f.Message = fmt.Sprintf("sagecomm: group %q: the splits of ranks %d and %d do not fit in an all_to_all further back than both remember; the input splits of one rank must be the output splits of the others (rank %d: %s; rank %d: %s)",
			g.title(), g.rank, t.Peer, g.rank, g.where(g.rank), t.Peer, g.where(t.Peer))
	}
	return f
}

// unfitText words that a rank expects a block of another length than a sender has for it. It says where the rank that is not this one is.
func (g diagnosis) unfitText(sequence uint64, rank int, expected uint64, sender int, sent uint64) string {
	one, other := g.number(rank), g.who(sender)
	if sender == g.rank {
		one, other = g.who(rank), g.number(sender)
	}
	return fmt.Sprintf("sagecomm: group %q: %s expects %d bytes from %s in all_to_all #%d, which sends it %d; the input splits of one rank must be the output splits of the others",
		g.title(), one, expected, other, sequence, sent)
}

// difference returns the first call up to a number in which this rank and a peer differ, of those that both remember.
func (g diagnosis) difference(peer int, through uint64) (mine, theirs runner.Announced, found bool) {
	for seq := max(through, runner.Records) - runner.Records + 1; seq <= through; seq++ {
		mine, ok := g.run.Announced(g.rank, seq)
		theirs, known := g.run.Announced(peer, seq)
		if ok && known && mine.Hash != theirs.Hash {
			return mine, theirs, true
		}
	}
	return mine, theirs, false
}

// timeout returns the failure of a timeout. It names the ranks that have not arrived and the last call of each. Its
// message contains "timed out after" and " timeout ", which users' programs look for because torch's backends use them.
// For the same reason the message for a rank that has left or died contains "Connection closed by peer".
func (g diagnosis) timeout(e evidence, t runner.Incident) *coll.Failure {
	return g.incomplete(e, t, fmt.Sprintf("timed out after its timeout of %v", t.Timeout))
}

// givenUp returns the failure of an operation that is not complete when this rank ends the group, which has waited for
// it.
func (g diagnosis) givenUp(t runner.Incident, until time.Time, waited time.Duration) *coll.Failure {
	e := g.evidence(until)
	e.library = g.throughLibraryHere()
	return g.incomplete(e, t, fmt.Sprintf("timed out after %v at the end of the group, with a timeout of %v,", waited.Round(time.Millisecond), t.Timeout))
}

// incomplete returns the failure of an operation that is not complete in time. how says what time it had.
func (g diagnosis) incomplete(e evidence, t runner.Incident, how string) *coll.Failure {
	f := g.failureOf(coll.Timeout, t.Peer, t)
	if !t.Op.Kind.Collective() {
		if e.unmetPeer(t) {
			f = g.failureOf(coll.Timeout, -1, t)
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s %s in %s: %s", g.title(), g.number(g.rank), how, t.Op.Describe(0), g.unmatched(e, t))
		return f
	}
	var what string
	absent, culprit := e.absent(t.Sequence, t.Peer)
	g.keepAbsent(t.Sequence, absent)
	if len(absent) > 0 {
		*f = *g.failureOf(coll.Timeout, culprit, t)
		what = g.notArrived(e, absent, culprit)
	} else if late := g.late(e, t.Sequence); late >= 0 {
		*f = *g.failureOf(coll.Timeout, late, t)
		what = fmt.Sprintf("%s have called it, but the stream of %s has not reached it: its device is busy with earlier work, or waits for something%s", e.all(), g.who(late), g.unknownOf(e))
	} else if t.Peer == g.rank && (!e.library || len(e.silentRanks()) == 0) { // at its own gate
		what = fmt.Sprintf("%s does not end it: its device is busy with earlier work, or waits for something%s", g.ownStream(e), g.unknownOf(e))
	} else {
		behind := e.behind(t.Peer, nil)
		*f = *g.failureOf(coll.Timeout, behind, t)
		what = e.all() + " have arrived, but " + g.standsStill(e, behind, e.silentRanks())
	}
	f.Message = fmt.Sprintf("sagecomm: group %q: %s %s in %s; %s", g.title(), g.number(g.rank), how, t.Op.Describe(t.Sequence), what)
	return f
}

// ownStream is the begin of a sentence about the stream of this rank, which has reached what all ranks have called.
func (g diagnosis) ownStream(e evidence) string {
	if len(e.silentRanks()) > 0 { // of whose streams that is not known
		return fmt.Sprintf("%s have called it, but the stream of %s", e.all(), g.who(g.rank))
	}
	return fmt.Sprintf("the streams of all ranks have reached it, but that of %s", g.who(g.rank))
}

// unmatched says why a p2p operation has timed out.
func (g diagnosis) unmatched(e evidence, t runner.Incident) string {
	onDevices := ""
	if g.run.Lane() == runner.DeviceLane {
		onDevices = ", and use tensors of devices on both sides"
	}
	counterpart := coll.Send
	if t.Op.Kind == coll.Send {
		counterpart = coll.Recv
	}
	switch {
	case t.Op.OfSparse():
		return fmt.Sprintf("all ranks have arrived, but %s does not go on", g.who(t.Peer))
	case t.Sent && onDevices != "":
		return fmt.Sprintf("%s has called the matching send, but its payload has not come: the stream of its device has not reached the send, or that rank does not go on", g.who(t.Peer))
	case t.Op.Root == coll.AnySource:
		return "no rank has completed a matching send; make both calls with the same tag" + onDevices
	case e.unmetPeer(t):
		return fmt.Sprintf("no link to %s was made in time, so it is not known whether it has called the matching %v; make both calls with the same tag%s, or look at the log of that rank",
			g.who(t.Peer), counterpart, onDevices)
	}
	return fmt.Sprintf("%s has not completed the matching %v, and it %s; make both calls with the same tag%s, or look at the log of that rank",
		g.who(t.Peer), counterpart, g.lastCall(t.Peer, e.last[t.Peer], e.silent[t.Peer]), onDevices)
}

// late returns the rank whose stream is the furthest behind a collective of the device lane, or -1 if the streams of
// all ranks have reached it, but for those that do not answer, of which that is not known.
func (g diagnosis) late(e evidence, sequence uint64) int {
	if g.run.Lane() == runner.HostLane {
		return -1
	}
	late, least := -1, sequence
	for rank := range g.size {
		if n := g.run.Reached(rank); n < least && !e.silent[rank] {
			late, least = rank, n
		}
	}
	return late
}

// lastCalls names ranks, the first 8 of them with their last calls.
func (g diagnosis) lastCalls(e evidence, ranks []int) string {
	var known, others []string
	advice := ""
	for _, rank := range ranks {
		if len(known) == 8 {
			others = append(others, strconv.Itoa(rank))
			continue
		}
		did := g.lastCall(rank, e.last[rank], e.silent[rank])
		if call, ok := g.inOtherLane(rank); ok {
			here, there := " on the CPU", " on a device"
			if g.run.Lane() == runner.DeviceLane {
				here, there = there, here
			}
			if strings.HasSuffix(did, firstOnDevice) {
				here = ""
			}
			did += fmt.Sprintf("%s, but it called %s%s, which %s has not called", here, call.Op.Describe(call.Sequence), there, g.number(g.rank))
			advice = "; in each call the tensors of all ranks must be on the CPU, or those of all ranks on devices"
		}
		if purpose := g.awaitsExchange(rank); purpose != "" {
			did += fmt.Sprintf(", and waits in control exchange %q, to which %s has not come", purpose, g.number(g.rank))
		}
		known = append(known, g.who(rank)+" "+did)
	}
	text := strings.Join(known, "; ")
	if len(others) > 0 {
		text += "; and rank " + strings.Join(others, ", ")
	}
	return text + advice
}

// firstOnDevice is what a rank has done that is inside its first collective on a device.
const firstOnDevice = "begun its first collective on a device"

// lastCall returns what a rank has called last, as the end of a sentence about it. last is the number of the call.
func (g diagnosis) lastCall(rank int, last uint64, silent bool) string {
	begun := !silent && g.hasBegunOnDevice(rank)
	did := "has called no collective yet"
	if call, ok := g.run.Announced(rank, last); ok {
		did = "last called " + call.Op.Describe(last)
	} else if last > 0 { // a rank of another host has left, and told no more than the number
		did = fmt.Sprintf("last called collective #%d", last)
	}
	switch {
	case begun && last > 0:
		did += ", and has " + firstOnDevice
	case begun:
		did = "has " + firstOnDevice
	}
	if !silent {
		return did
	}
	if last > 0 {
		return "had " + strings.TrimPrefix(did, "has ") + " when it last answered, and does not answer now: it may be stopped, or its host busy"
	}
	return "does not answer, so it is not known what it has called: it may be stopped, or its host busy"
}

// hasBegunOnDevice reports whether a rank has begun its first collective on a device, which has no number yet: it has taken part in an
// exchange of the ranks' join of an engine.
func (g diagnosis) hasBegunOnDevice(rank int) bool {
	if r := g.remote(rank); r != nil && r.made[topicEngine].Load() == nil { // it has posted nothing
		return false
	}
	_, called := g.run.LastIn(runner.DeviceLane, rank)
	return !called && topicEngine.entry(g.Group, rank).posted.Load() > 0
}

// inOtherLane returns the last collective of a rank in the lane that the incident is not in, if this rank has not
// called it: the rank may mean the call in which this one waits for it.
func (g diagnosis) inOtherLane(rank int) (runner.Announced, bool) {
	other := runner.DeviceLane
	if g.run.Lane() == runner.DeviceLane {
		other = runner.HostLane
	}
	theirs, ok := g.run.LastIn(other, rank)
	mine, _ := g.run.LastIn(other, g.rank)
	return theirs, ok && theirs.Sequence > mine.Sequence
}

func (g diagnosis) last(rank int) uint64 {
	if rank < 0 || rank >= g.size {
		return 0
	}
	last, _ := g.run.LastCall(rank)
	return last
}

// begun returns the number of the last collective that a rank has begun, as far as that is known. A rank of another
// host answers nothing behind its goodbye, which has the number of the host lane.
func (g diagnosis) begun(rank int) uint64 {
	if r := g.remote(rank); r != nil && g.run.Lane() == runner.HostLane {
		return max(g.last(rank), r.pair.LeftAfter())
	}
	return g.last(rank)
}
