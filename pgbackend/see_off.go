package pgbackend

import (
	"context"
	"errors"
	"slices"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// This file has what a rank does at the end of the rendezvous if its process may serve the store: the caller may end
// the process, and the other ranks need the store until they have joined or know why not (docs/protocol.md, section 16,
// Rendezvous).

// readGrace is how long a rank waits for others that are about to read the end of a try in the store, or to find a
// failure by themselves, and for those of a group that has failed meanwhile. Tests change it.
var readGrace = 900 * time.Millisecond

const (
	// beginGrace is how long a rank whose settings are wrong waits for others, which may not have begun yet, if its
	// process may serve the store.
	beginGrace = 10 * time.Second
	// toldGrace is how long a rank waits for those that it has told why it gives up, and abortGrace so for a caller
	// that has ended the join.
	toldGrace  = 900 * time.Millisecond
	abortGrace = 50 * time.Millisecond
)

// seeOff waits until no other rank needs the store of the id. g is the group that was made, or err is why this rank has
// given up, which the others are told.
// Requires: this rank has closed its own connections. m is nil if another process serves the store.
func seeOff(ctx context.Context, m *bootstrap.Meeting, g *Group, err error, deadline time.Time) {
	if m == nil {
		return
	}
	if err == nil {
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		if !m.Wait(ctx, g.announced) {
			waitFor(ctx, m, readGrace)
		}
		return
	}
	var all *bootstrap.FailedError
	told := errors.As(err, &all) && len(all.Missing)+all.Unknown == 0
	if ctx.Err() == nil && told && waitFor(ctx, m, readGrace) {
		return
	}
	if f := CreateFailure("", err); f.Rank >= 0 || f.Status == coll.Timeout {
		err = tellingError{err, toldFailure{f.Status, f.Rank, f.PID, shorten(f.Host, mostName)}}
	}
	m.End(err)
	grace := toldGrace
	if ctx.Err() != nil {
		grace = abortGrace
	}
	waitFor(context.Background(), m, grace)
}

// waitFor waits for the end of a meeting, and reports whether it has come.
func waitFor(ctx context.Context, m *bootstrap.Meeting, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return m.Wait(ctx, nil)
}

// mayServeStore reports whether the process of this rank serves the store, or may do so: it is that of rank 0, as a
// rule, which serves a store of the caller.
func (g *Group) mayServeStore() bool {
	if g.birth != nil {
		return g.process.server.Meeting(g.birth.id) != nil
	}
	return g.rank == 0
}

// leaveStore ends what this rank does in the store to make the group. failed is why the last try has failed, nil if it
// has not. Over a store of the caller, a rank whose process may serve it waits for those that have not read the end of
// the try; at an id that is the business of seeOff.
func (g *Group) leaveStore(store bootstrap.Store, failed error) {
	if g.news.try == "" || g.birth != nil && failed == nil { // no try has begun, or Leave tells it
		return
	}
	_ = bootstrap.TellEnded(store, g.news.try+endedKey, g.rank) // without it rank 0 waits for readGrace
	if g.birth == nil && g.mayServeStore() {
		g.awaitReaders(store, g.news.try, failed, readGrace)
	}
}

// awaitReaders waits until the other ranks need nothing more of a try, or until the limit. failed is why the try has
// failed, nil if it has not: a rank that has not come is not waited for. Nobody is where the store is lost, after an
// interruption, and where this rank itself has found a failure of another one.
func (g *Group) awaitReaders(store bootstrap.Store, try string, failed error, limit time.Duration) {
	var late *bootstrap.TimeoutError
	var told *bootstrap.FailedError
	var absent []int
	switch {
	case errors.As(failed, new(*bootstrap.StoppedError)), errors.As(failed, new(*coll.Failure)):
		return
	case errors.As(failed, &late):
		absent = late.Missing
	case errors.As(failed, &told):
		absent = told.Missing
	case failed != nil:
		return
	}
	var others []int
	for rank := range g.size {
		if rank != g.rank && !slices.Contains(absent, rank) {
			others = append(others, rank)
		}
	}
	bootstrap.AwaitEnded(store, try+endedKey, others, limit)
}
