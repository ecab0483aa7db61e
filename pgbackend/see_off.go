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

const (
	// readGrace is how long a rank waits for others that are about to read a failure in the store, or to find one by
	// themselves, and for those of a group that has failed meanwhile.
	readGrace = 900 * time.Millisecond
	// beginGrace is how long a rank whose settings are wrong waits for others, which may not have begun yet.
	beginGrace = 10 * time.Second
	// toldGrace is how long a rank waits for those that it has told why it gives up, and abortGrace so for a caller
	// that has ended the join.
	toldGrace  = 900 * time.Millisecond
	abortGrace = 50 * time.Millisecond
	// causeLook is the pause between two looks whether the group has failed meanwhile.
	causeLook = 100 * time.Millisecond
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
		for ctx.Err() == nil && g.Cause() == nil {
			if waitFor(ctx, m, causeLook) {
				return
			}
		}
		waitFor(ctx, m, readGrace)
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
	return m.Wait(ctx)
}

// awaitReaders waits until the other ranks need nothing more of a try that has failed, or until the limit. Rank 0 does
// so, because its process serves a store of the caller as a rule. failed has the ranks that have not come; nil: some may
// not have begun. Where a rank or the store is lost, nobody is waited for.
func (g *Group) awaitReaders(store bootstrap.Store, try string, failed error, limit time.Duration) {
	var late *bootstrap.TimeoutError
	var told *bootstrap.FailedError
	var absent []int
	switch {
	case g.rank != 0:
		return
	case errors.As(failed, new(*bootstrap.StoppedError)), errors.As(failed, new(*coll.Failure)):
		return
	case errors.As(failed, &late):
		absent = late.Missing
	case errors.As(failed, &told):
		absent = told.Missing
	case failed != nil:
		return
	}
	deadline := time.Now().Add(limit)
	for peer := 1; peer < g.size && time.Now().Before(deadline); peer++ {
		if slices.Contains(absent, peer) {
			continue
		}
		err := bootstrap.AwaitAbandoned(store, g.keys+try+endedRound, peer, time.Until(deadline))
		if err != nil && !errors.Is(err, bootstrap.ErrTimeout) {
			return
		}
	}
}
