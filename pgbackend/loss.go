package pgbackend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// This file has what a rank does about the loss of another one while the group is made. Processes of a large group do
// not all watch each other, so a rank that has noticed a loss tells it to the others in the store (docs/protocol.md,
// section 6).

// lossKey is the key of what a rank tells of a loss, behind that of the try.
const lossKey = "/loss"

// A rank of a group whose processes do not all watch each other asks that often whether a loss was told. Rank 0 tells
// the others at once, so they ask more seldom, for the case that it is the one that is lost. Tests change these.
var (
	firstHears = 200 * time.Millisecond
	othersHear = 2 * time.Second
)

// lossNews is what a rank knows of losses in a try to make the group. One goroutine uses it, that of the rendezvous.
type lossNews struct {
	try       string        // the try's prefix of keys; empty before the first one
	asked     *coll.Failure // the loss of a link of which endOfWaits has asked for the reason
	explained *coll.Failure // what the store has told of a loss; this rank's own view of it does not count then
	heard     bool          // that, or more, stands under lossKey
	looked    time.Time     // when this rank last asked for that
	patient   time.Time     // until then this rank waits for others although a link was not made
}

// endOfWaits returns why this rank waits for others no longer while the group is made, nil as a rule. It may ask the
// store.
// Requires: the store is not one that calls endOfWaits, as that of an attempt does.
func (g *Group) endOfWaits(store bootstrap.Store) error {
	if lost := g.unlinked.Load(); lost != nil && lost != g.news.asked {
		g.askWhyUnlinked(store)
		g.news.asked = lost
		if lost.Status != coll.PeerFailure {
			g.news.patient = time.Now().Add(refusedGrace)
		}
	}
	lost := g.lost()
	switch {
	case lost == nil:
		g.hearOfLoss(store)
	case lost == g.unlinked.Load() && time.Now().Before(g.news.patient):
		return nil
	}
	return telling(g.lost())
}

// refusedGrace is how long a rank whose link was refused, or was not made in time, waits for the others: they live, as
// a rule, and are about to find the same. The process of this rank may serve the store in which they read why.
const refusedGrace = 2 * time.Second

// askWhyUnlinked takes the reason of a rank at the end of a link that was lost, if one there has given the group up
// before its process ended, else what any rank has told of a loss: a rank there may have followed that, and ended.
func (g *Group) askWhyUnlinked(store bootstrap.Store) {
	lost := g.unlinked.Load()
	if lost == nil || g.news.explained != nil {
		return
	}
	i := slices.IndexFunc(g.links.processes, func(p linkedProcess) bool { return slices.Contains(p.ranks, lost.Rank) })
	for _, rank := range g.links.processes[i].ranks {
		told := bootstrap.Abandoned(store, g.news.try+joinedRound, rank)
		if told == nil {
			continue
		}
		f := g.failedRank(coll.System, rank)
		if of := readTold(told.Detail); of != nil && of.Rank != g.rank {
			of.giveTo(f)
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s does not make the group any more: %s", g.name, g.who(rank),
			strings.TrimPrefix(told.Reason, "sagecomm: "))
		g.news.explained = f
		return
	}
	if g.makesLinks() {
		g.hear(store)
	}
}

// tellOfLoss tells the ranks that do not watch a rank which is lost that the group cannot be made. The first loss that
// is told stays: what this rank has lost may be a rank that has followed it.
func (g *Group) tellOfLoss(store bootstrap.Store) {
	if g.lost() == nil || !g.makesLinks() || g.news.heard {
		return
	}
	if g.hear(store); !g.news.heard {
		_ = bootstrap.Abandon(store, g.news.try+lossKey, 0, 1, telling(g.lost())) // if the store takes it
	}
}

// hearOfLoss asks the store now and then whether a rank has told of a loss.
func (g *Group) hearOfLoss(store bootstrap.Store) {
	pause := othersHear
	if g.rank == 0 {
		pause = firstHears
	}
	if !g.makesLinks() || time.Since(g.news.looked) < pause {
		return
	}
	g.news.looked = time.Now()
	g.hear(store)
}

// hear asks the store whether a rank has told of a loss. That takes the place of what this rank has seen, unless it is
// the loss of this rank, which others have lost while it has lost one.
func (g *Group) hear(store bootstrap.Store) {
	told := bootstrap.Abandoned(store, g.news.try+lossKey, 0)
	if told == nil {
		return
	}
	g.news.heard = true
	f := &coll.Failure{Status: coll.System, Rank: -1, Group: g.name, Message: told.Reason}
	if of := readTold(told.Detail); of != nil {
		if of.Rank != g.rank {
			of.giveTo(f)
		} else if g.lost() != nil {
			return
		}
	}
	if g.news.explained == nil {
		g.news.explained = f
	}
}

// bereaved returns the error of a rendezvous during which peers were lost. It names the loss instead of the ranks that
// did not come in time, because a loss cuts the wait short and may have delayed those ranks, and in front of the loss
// of the store, whose process may have ended for the same reason, or of what the rank there has told. An interruption
// stays the reason.
func (g *Group) bereaved(err error) error {
	var late *bootstrap.TimeoutError
	var failed *bootstrap.FailedError
	var store *bootstrap.StoreError
	var gaveUp *bootstrap.GaveUpError
	var lost *coll.Failure
	switch {
	case errors.As(err, new(*bootstrap.StoppedError)), errors.As(err, new(*coll.Failure)):
		return err
	case errors.As(err, &late), errors.As(err, &failed) && len(failed.Missing)+failed.Unknown > 0,
		errors.As(err, &gaveUp) && gaveUp.Prefix == "": // it has told what it knows of a loss
		return cmp.Or(g.lost(), err)
	case errors.As(err, &store) && errors.As(g.lost(), &lost):
		f := *lost
		f.Message = fmt.Sprintf("%s; the store cannot be used either: %v", f.Message, store.Cause)
		return &f
	}
	return err
}

// lost returns the failure that ends this rank's waits for others while the group is made: a rank has died, here or as a
// rank of the parent, or a link is lost. It returns nil if there is none. What the store has told takes precedence: a
// rank that is lost may have given the group up for that, and ended.
// Requires: the caller is the goroutine of the rendezvous.
func (g *Group) lost() error {
	if told := g.news.explained; told != nil {
		return told
	}
	if dead := g.life.dead(); len(dead) > 0 {
		return g.diedMeanwhile(dead[0])
	}
	if unlinked := g.unlinked.Load(); unlinked != nil {
		return unlinked
	}
	return g.kin.lost(g.name)
}

// diedMeanwhile returns the failure of a group whose rank has died, or cannot be reached any more, while the group was
// made.
func (g *Group) diedMeanwhile(rank int) *coll.Failure {
	f := g.failedRank(coll.PeerFailure, rank)
	f.Message = fmt.Sprintf("sagecomm: group %q: %s: %s died while the group was made; "+
		"look at its log for the reason, then restart the job", g.name, closedByPeer, g.who(rank))
	if why := g.whyLost(rank); why != nil {
		f.Message = fmt.Sprintf("sagecomm: group %q: %s: %s was lost while the group was made: %v",
			g.name, closedByPeer, g.who(rank), why)
	}
	return f
}
