package pgbackend

import (
	"time"

	"sagecomm/internal/engine/vendor"
)

// Leave waits for operations and graphs, because a driver sees a little later that the stream of a device has ended
// one, and that a graph is destroyed.
const (
	leaveWait  = 200 * time.Millisecond
	leaveQuiet = 20 * time.Millisecond // where graphs alone are left, the wait ends when none has been destroyed for so long
)

// Leave ends this rank's part of the group without a wait for peers, as NCCL's abort does. With operations or control
// exchanges of this rank that are not complete it aborts the group for the reason, and the caller destroys the group
// then. So it does if graphs that were not destroyed have operations, which may be running. Otherwise it destroys the
// group: a peer fails only if it needs this rank later. An operation that another goroutine issues meanwhile fails.
func (g *Group) Leave(reason string) {
	if g.Outstanding() {
		g.Abort(reason)
	} else if g.life.move(destroying) {
		g.depart()
	}
}

// Outstanding reports whether the group has failed, or operations or control exchanges of this rank are not complete
// and will not be at once, or graphs that were not destroyed have operations.
func (g *Group) Outstanding() bool {
	if !g.life.acquire() {
		return false
	}
	defer g.life.release()
	begin := time.Now()
	changed, before := begin, g.left()
	for g.failed() == nil {
		left := g.left()
		if left == (remains{}) {
			return false
		}
		if left != before {
			changed, before = time.Now(), left
		}
		quiet := left == remains{graphs: left.graphs} && time.Since(changed) >= leaveQuiet // graphs alone, and none is destroyed any more
		if left.graphs.Uncounted || quiet || time.Since(begin) >= leaveWait {
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	return true
}

// remains are what a rank has not ended yet.
type remains struct {
	operations, exchanges int64
	graphs                vendor.Graphs
}

func (g *Group) left() (r remains) {
	r.operations, r.exchanges = int64(g.unfinishedRuns())+int64(g.composites.Load()), int64(g.exchanges.Load())
	for _, l := range g.lanes() {
		if e, captures := l.engine.(interface{ Graphs() vendor.Graphs }); captures {
			of := e.Graphs()
			r.graphs.Live += of.Live
			r.graphs.Uncounted = r.graphs.Uncounted || of.Uncounted
		}
	}
	return r
}
