package pgbackend

import (
	"fmt"
	"slices"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file words the failures of control exchanges. [Group.fail] fills in the group and the culprit's process.

// refuseControl returns the failure of an exchange that no rank can make, nil if it can be made.
func (g *Group) refuseControl(t topic, purpose string, bytes int) *coll.Failure {
	what, got, most := "message", bytes, maxControlMessage
	if len(purpose) > maxPurpose {
		what, got, most = "purpose", len(purpose), maxPurpose
	} else if bytes <= maxControlMessage {
		return nil
	}
	return &coll.Failure{Status: coll.Invalid, Rank: g.rank, Group: g.name,
		Message: fmt.Sprintf("sagecomm: control exchange (topic %v): rank %d: a %s of %d bytes, expected at most %d", t, g.rank, what, got, most)}
}

// disagreement returns the failure for a peer that makes another exchange of the topic than this rank.
func (x *controlExchange) disagreement(peer int, theirs string) *coll.Failure {
	g := x.g
	low, high, one, other := g.rank, peer, x.purpose, theirs
	if high < low {
		low, high, one, other = high, low, other, one
	}
	return &coll.Failure{Status: coll.Mismatch, Rank: peer,
		Message: fmt.Sprintf("sagecomm: group %q: ranks disagree in a control exchange (topic %v): %s exchanges %q, %s exchanges %q; every rank must make the same calls in the same order, with the same settings (rank %d: %s; rank %d: %s)",
			g.title(), x.topic, g.number(low), one, g.number(high), other, low, g.where(low), high, g.where(high))}
}

// corrupted returns the failure for a peer whose entry holds a value that no rank writes.
func (x *controlExchange) corrupted(peer int, what string) *coll.Failure {
	g := x.g
	return &coll.Failure{Status: coll.Internal, Rank: peer,
		Message: g.corruptedText(peer, fmt.Sprintf("an invalid %s, needed by %s in %v", what, g.number(g.rank), x))}
}

// timedOut returns the failure of a timeout. Its message has the words of Group.timeout.
func (x *controlExchange) timedOut(missing []int) *coll.Failure {
	g := x.g
	d := diagnosis{g, g.run}
	until := d.askFor(runner.Incident{Code: runner.Timeout, Peer: missing[0]})
	e := d.evidence(until)
	var absent []int // taken with the evidence: a rank may have come while others were asked
	for rank, entry := range x.entries {
		if rank != g.rank && entry.posted.Load() < x.first && !e.isUnmet(rank) {
			absent = append(absent, rank)
		}
	}
	f := &coll.Failure{Status: coll.Timeout}
	var what string
	if len(absent) > 0 {
		f.Rank = absent[0]
		if g.remotes != nil { // who does not answer may be one that the others wait for
			absent, f.Rank = e.firstOf(absent, g.rank)
		}
		what = d.notArrived(e, absent, f.Rank)
	} else {
		f.Rank = e.holdsUp(missing)
		what = e.all() + " have arrived, but " + d.standsStill(e, f.Rank, e.silentOf(missing))
	}
	g.letOthersTell(f, until)
	f.Message = fmt.Sprintf("sagecomm: group %q: %s timed out after its timeout of %v in %v; %s; every rank must come to it: look at what that rank does, and raise the timeout if it is only slow",
		g.title(), g.number(g.rank), x.timeout, x, what)
	return f
}

// holdsUp returns the rank that holds up an exchange to which all ranks have come, of those that have not done their
// part of its present step. One that answers may wait for one that does not. -1: several do not, or nothing is known of
// one.
func (e evidence) holdsUp(missing []int) int {
	silent := e.silentOf(missing)
	switch {
	case len(silent) > 1 || slices.ContainsFunc(missing, e.isUnmet):
		return -1
	case len(silent) == 1:
		return silent[0]
	default:
		return missing[0]
	}
}
