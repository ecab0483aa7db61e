package pgbackend

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// Destroy waits until the issued operations are complete, tells the peers that this rank leaves, and frees the group.
// It waits for operations on devices as long as they may take, and for others destroyTimeout (settle.go). The wait ends
// when the group has failed, as it does when a peer dies that had not left. Destroy does not wait until peers destroy
// the group too: sweep frees memory that they may still touch when they have left or died. Behind a Settle it gives up
// at once what is left. Destroy returns an error if the group is being destroyed already.
//
// For a group that met at a unique id all operations have as long as they may take: its callers destroy a group while
// operations that they have issued wait for peers, as NCCL permits.
func (g *Group) Destroy() error { return g.destroy(true) }

// destroy is Destroy. With patient false all operations get destroyTimeout, for a process that ends, and the results
// with it.
func (g *Group) destroy(patient bool) error {
	if !g.life.move(destroying) {
		return fmt.Errorf("sagecomm: group %q was destroyed already", g.title())
	}
	if what, f := g.settle(patient); what != "" {
		observe.Warn("group %q was destroyed on %s with operations %s; they fail now", g.title(), g.number(g.rank), what)
		if f != nil && f.OnDevice {
			g.givenUp.Store(f)
		}
	}
	g.depart()
	return nil
}

// depart tells the peers that this rank leaves, makes the operations that are left fail, and frees the group.
// Requires: this goroutine has made the group one that is being destroyed.
func (g *Group) depart() {
	waitForFiles := g.process.observers.Remove(view{g})
	if g.arbiter != nil { // what is being decided may still become the cause
		g.arbiter.flush(flushLimit)
	}
	g.failureCallback.call(nil) // destroying a group is no failure
	aborted := g.destroyedHere()
	if g.cause.CompareAndSwap(nil, aborted) {
		g.clean.Store(true)
		close(g.announced)
		g.info("destroyed")
	}
	g.adopt(aborted)
	if g.arbiter != nil { // it ends before the peers count this rank as one that has left, and behind what adopt has declared
		if g.declaredCut.Load() {
			g.arbiter.flush(flushLimit)
		}
		g.arbiter.leave(g)
	}
	g.run.Goodbye()
	p := g.process
	p.mu.Lock()
	delete(p.groups, g.Handle())
	if d := g.device.Load(); d != nil {
		delete(p.lanes, d.run.Handle())
	}
	p.mu.Unlock()
	p.engine.changed(p)
	// Some callers may still be returning with the error. A caller that held a lock when the group went down may leave
	// operations unfinished, and the engine no longer drives this group, so Down is called until none is left.
	for g.unfinishedRuns() > 0 {
		g.down()
		time.Sleep(50 * time.Microsecond)
	}
	g.process.observers.TakeTimeline(view{g})
	g.life.leave()
	g.unlisten()
	g.run.Detach()
	p.mu.Lock()
	p.leaving = append(p.leaving, g)
	p.mu.Unlock()
	p.sweep()
	waitForFiles()
}

// destroyedHere returns the failure of operations of a group that is destroyed under them.
func (g *Group) destroyedHere() *coll.Failure {
	return &coll.Failure{Status: coll.Aborted, Rank: g.rank, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q was destroyed on %s; wait for all works before destroying the group, and make no calls on it afterwards",
			g.title(), g.number(g.rank))}
}

// declareCut declares a failure because this rank, which destroys the group, is about to end operations on devices that
// are under way: those of its peers may go on without its data. The kernels of a library even tell their peers that
// they have sent what these wait for. The group has not failed for this rank, whose own operations end with
// destroyedHere. Nothing is declared where the group has failed, or has a cause of which the arbiter has no verdict
// yet. Several threads may call it, for the group has a communicator for each device; each returns when the failure is
// declared. Peers on other hosts hear of it a little later.
func (g *Group) declareCut(engine string) {
	if !g.clean.Load() || g.run.FirstCause() != nil {
		return
	}
	g.cut.Do(func() {
		f := g.failedRank(coll.PeerFailure, g.rank)
		f.OnDevice = true
		last := ""
		if call, called := g.run.LastIn(runner.DeviceLane, g.rank); called {
			f.Op, f.Sequence = call.Op.Name(), call.Sequence
			last = ", in or after " + call.Op.Describe(call.Sequence)
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s: %s has destroyed the group and ended operations of %s that were under way%s; if its log shows an exception, look there for the reason, else wait for all works on all ranks before any of them destroys the group or ends",
			g.title(), closedByPeer, g.who(g.rank), engine, last)
		if g.arbiter == nil {
			g.run.Declare(f)
			return
		}
		g.arbiter.declare(f, callerWait, nil)
		g.declaredCut.Store(true)
	})
}

// tombs is the number of groups given up by this rank whose shared blocks are kept after the last peer has given up
// too. Such peers do not write into the block, but may still read whether this rank has given up.
const tombs = 8

// sweep frees the groups whose shared blocks no peer will touch any more.
func (p *Process) sweep() {
	p.mu.Lock()
	var stay, free, given []*Group
	for _, g := range p.leaving {
		switch {
		case !g.abandoned():
			stay = append(stay, g)
		case g.run == nil:
			given = append(given, g)
		default:
			free = append(free, g)
		}
	}
	oldest := max(0, len(given)-tombs)
	p.leaving = append(stay, given[oldest:]...)
	free = append(free, given[:oldest]...)
	for _, g := range given[oldest:] {
		g.leaveRemotes()
	}
	p.mu.Unlock()
	for _, g := range free {
		g.life.mustMove(freed)
		g.unwatchPeers()
		if g.run != nil {
			if d := g.device.Load(); d != nil {
				d.engine.Close()
				d.run.Close()
			}
			g.run.Close()
		}
		g.freeLinks()
		releaseAll(g.maps)
		err := g.memory.free()
		if g.own != nil {
			err = errors.Join(err, p.closeArena(g.own))
		}
		if err != nil {
			observe.Warn("%v", err)
		}
	}
}

// peersLeft reports whether this rank has destroyed the group and no peer will touch its shared block any more.
func (g *Group) peersLeft() bool {
	p := g.process
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.leaving, g) { // sweep takes a group off this list before it frees the memory
		return g.abandoned()
	}
	return g.life.now() == freed
}

// abandoned reports whether no peer will touch this rank's shared block any more, because each has left, died, or given
// up. A peer that gave up has written so into its own shared block, which may be freed since and hold anything. That
// does no harm: this rank frees no memory that others may touch before they have left themselves. A rank that is gone
// stays so, and is not looked at again. Requires: process.mu.
func (g *Group) abandoned() bool {
	for ; g.awaited < g.size; g.awaited++ {
		switch rank := g.awaited; {
		case rank == g.rank, g.life.isGone(rank), runner.Detached(g.memory.at(), g.size, rank):
		case g.peers[rank].GaveUp():
			g.life.lost(rank)
		default:
			return false
		}
	}
	return g.haveHeard()
}
