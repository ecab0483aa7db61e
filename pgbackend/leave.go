package pgbackend

import (
	"slices"
	"time"
)

// leaveWait bounds how long Leave waits for operations and graphs: a driver sees a little later that the stream of a device has ended one,
// and that a graph is destroyed.
const leaveWait = 200 * time.Millisecond

// Leave ends this rank's part of the group without a wait for peers, as NCCL's abort does. With operations or control exchanges of this
// rank that are not complete it aborts the group for the reason, and the caller destroys the group then. So it does if graphs that were not
// destroyed have operations, which may be running. Otherwise it destroys the group: a peer fails only if it needs this rank later. An operation that
// another goroutine issues meanwhile fails.
func (g *Group) Leave(reason string) {
	if g.outstanding() {
		g.Abort(reason)
	} else if g.life.move(destroying) {
		g.depart()
	}
}

// outstanding reports whether the group has failed, or operations or control exchanges of this rank are not complete and will not be at
// once.
func (g *Group) outstanding() bool {
	if !g.life.acquire() {
		return false
	}
	defer g.life.release()
	for begin := time.Now(); g.failed() == nil; time.Sleep(200 * time.Microsecond) {
		if !g.unfinished() && g.exchanges.Load() == 0 && !g.hasGraphs() {
			return false
		}
		if time.Since(begin) >= leaveWait {
			break
		}
	}
	return true
}

// hasGraphs reports whether graphs that were not destroyed have operations of the group.
func (g *Group) hasGraphs() bool {
	return slices.ContainsFunc(g.lanes(), func(l *lane) bool {
		e, captures := l.engine.(interface{ HasGraphs() bool })
		return captures && e.HasGraphs()
	})
}
