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

// destroyTimeout bounds how long Destroy waits for issued operations, because peers may never join them. Tests change it.
var destroyTimeout = 2 * time.Second

// Destroy waits until the issued operations are complete, tells the peers that this rank leaves, and frees the group. The
// wait is bounded and ends when a peer has died; over several hosts it goes on as long as data come or go. Where tensors are on devices, it
// goes on as long as peers call collectives, because wait() of an operation that is queued whole has not waited for them. While an operation
// was called where it had to be and waits for the stream of a device, the bound is the timeout of operations, because nobody
// may have waited for it on the host; so it is while an error of a vendor's library waits for a failure that explains it. Destroy does
// not wait until peers destroy the group too: sweep frees memory that they may still touch when they have left or died. Destroy returns
// an error if the group is being destroyed already.
//
// For a group that met at a unique id the bound is always the timeout of operations: its callers destroy a group while operations
// that they have issued wait for peers, as NCCL permits.
func (g *Group) Destroy() error { return g.destroy(g.timeout()) }

// destroy is Destroy with another bound for streams that are late, and for peers of groups that met at a unique id: 0 where the
// process ends, and the results with it.
func (g *Group) destroy(late time.Duration) error {
	if !g.life.move(destroying) {
		return fmt.Errorf("sagecomm: group %q was destroyed already", g.title())
	}
	if what := g.settle(late); what != "" {
		observe.Warn("group %q was destroyed on %s with operations %s; they fail now", g.title(), g.number(g.rank), what)
		if d := g.device.Load(); d != nil && d.run.Unfinished() > 0 {
			g.givenUp.Store(g.unfinishedHere(coll.Timeout, what))
		}
	}
	g.depart()
	return nil
}

// depart tells the peers that this rank leaves, makes the operations that are left fail, and frees the group.
// Requires: this goroutine has made the group one that is being destroyed.
func (g *Group) depart() {
	waitForFiles := g.process.observers.Remove(view{g})
	if g.arbiter != nil { // it ends before the peers count this rank as one that has left
		g.arbiter.flush(flushLimit)
		g.arbiter.leave(g)
	}
	g.run.Goodbye()
	g.failureCallback.call(nil) // destroying a group is no failure
	aborted := g.destroyedHere()
	if g.cause.CompareAndSwap(nil, aborted) {
		g.clean.Store(true)
		close(g.announced)
		g.info("destroyed")
	}
	g.adopt(aborted)
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

// settle waits for the issued operations as Destroy does, and returns which ones it gave up, in words, or "".
func (g *Group) settle(late time.Duration) string {
	limit := g.process.destroyLimit()
	moved := g.movedBetweenHosts()
	began := time.Now()
	asked, pause, askedAll := began, settleAsks, false
	called := g.calledOnDevices()
	for begin := began; g.cause.Load() == nil && g.unfinished() && !g.bereft(); {
		waits := time.Since(began) < late // for streams
		if waits && time.Since(asked) >= pause {
			g.question(g.unreached()...)
			asked, pause = time.Now(), min(2*pause, settleSeldom)
		}
		behind := g.streamIsLate()
		if now := g.calledOnDevices(); now != called && waits { // peers come to the operations that are left, one after the other
			begin, called, askedAll = time.Now(), now, false
		}
		if (behind || g.birth != nil || g.reports()) && waits {
			begin, askedAll = time.Now(), false
		} else if time.Since(begin) >= limit {
			if now := g.movedBetweenHosts(); now != moved { // a network may be slow
				begin, moved = time.Now(), now
				continue
			}
			if unknown := g.unreached(); waits && !askedAll && len(unknown) > 0 {
				g.ask(stateLimit, unknown...)
				askedAll = true
				continue
			}
			g.process.destroyTimedOut()
			if behind {
				return fmt.Sprintf("that the stream of a device has not reached or not ended for %v", time.Since(began).Round(time.Second/10))
			}
			return fmt.Sprintf("that peers have not joined for %v", time.Since(began).Round(limit/10))
		}
		time.Sleep(200 * time.Microsecond)
	}
	return ""
}

// When settle asks ranks of other hosts how far they and their streams are: ever more seldom, because all ranks of the group may ask all others.
const (
	settleAsks   = 100 * time.Millisecond
	settleSeldom = time.Second
)

// Finish waits until the issued operations are complete, as long as Destroy does, for callers that ask how they ended before they
// destroy the group. It returns the failure of the group, or which operations are not complete.
func (g *Group) Finish() *coll.Failure {
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	status, what := coll.Timeout, g.settle(g.timeout())
	if f := g.failed(); f != nil {
		return f
	}
	if what == "" && g.unfinished() {
		status, what = coll.PeerFailure, "that need a rank which has died"
	}
	if what == "" {
		return nil
	}
	return g.unfinishedHere(status, what)
}

// unfinishedHere returns the failure of a wait for the issued operations, some of which are not complete.
func (g *Group) unfinishedHere(status coll.Status, what string) *coll.Failure {
	return &coll.Failure{Status: status, Rank: -1, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: %s has operations %s", g.title(), g.number(g.rank), what)}
}

// streamIsLate reports whether all ranks have called the collective of the device lane that is under way here, and the stream of
// one of them has not reached it, or whether a p2p operation of this rank waits for a stream.
func (g *Group) streamIsLate() bool {
	d := g.device.Load()
	if d == nil {
		return false
	}
	if d.run.P2PStreamsAreLate() {
		return true
	}
	mine, called := d.run.LastIn(runner.DeviceLane, g.rank)
	late := false
	for rank := range g.size {
		theirs, has := d.run.LastIn(runner.DeviceLane, rank)
		called = called && has && theirs.Sequence >= mine.Sequence
		late = late || d.run.Reached(rank) < mine.Sequence
	}
	return called && late
}

// calledOnDevices returns how many of the collectives of the device lane that this rank has called all ranks have called, as far as this one
// knows. Those that peers call beyond them do not count: nothing here waits for them.
func (g *Group) calledOnDevices() (n uint64) {
	d := g.device.Load()
	if d == nil {
		return 0
	}
	mine, called := d.run.LastIn(runner.DeviceLane, g.rank)
	for rank := range g.size {
		if last, has := d.run.LastIn(runner.DeviceLane, rank); has && called {
			n += uint64(min(last.Sequence, mine.Sequence))
		}
	}
	return n
}

// reports reports whether the engine of the device lane has an error that is about to make the group fail.
func (g *Group) reports() bool {
	d := g.device.Load()
	if d == nil {
		return false
	}
	e, has := d.engine.(interface{ Reports() bool })
	return has && e.Reports()
}

// unreached returns the ranks of other hosts of which it is not known that their streams have reached the collective of the device lane that is
// under way here. There are none where nothing is under way.
func (g *Group) unreached() (list []int) {
	d := g.device.Load()
	if d == nil || d.run.Unfinished() == 0 {
		return nil
	}
	mine, called := d.run.LastIn(runner.DeviceLane, g.rank)
	for _, rank := range g.remoteRanks() {
		if called && d.run.Reached(rank) < mine.Sequence && g.answers(rank) {
			list = append(list, rank)
		}
	}
	return list
}

// destroyedHere returns the failure of operations of a group that is destroyed under them.
func (g *Group) destroyedHere() *coll.Failure {
	return &coll.Failure{Status: coll.Aborted, Rank: g.rank, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q was destroyed on %s; wait for all works before destroying the group, and make no calls on it afterwards",
			g.title(), g.number(g.rank))}
}

func (g *Group) unfinished() bool { return g.unfinishedRuns() > 0 || g.composites.Load() > 0 }

// destroyLimit returns how long Destroy waits for operations. After a Destroy that gave up, the next ones wait a tenth as long,
// because peers that did not join the operations of one group rarely join those of the next.
func (p *Process) destroyLimit() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.inVain) < destroyTimeout {
		return destroyTimeout / 10
	}
	return destroyTimeout
}

func (p *Process) destroyTimedOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inVain = time.Now()
}

// bereft reports whether a peer has died without leaving the group first; then no collective completes. A peer that has left
// does not count, because operations that need it notice its absence themselves.
func (g *Group) bereft() bool {
	for _, rank := range g.life.dead() {
		if _, left := g.run.LastCall(rank); !left {
			return true
		}
	}
	return false
}

// tombs is the number of groups given up by this rank whose shared blocks are kept after the last peer has given up too. Such
// peers do not write into the block, but may still read whether this rank has given up.
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

// abandoned reports whether no peer will touch this rank's shared block any more, because each has left, died, or given up. A
// peer that gave up has written so into its own shared block, which may be freed since and hold anything. That does no harm:
// this rank frees no memory that others may touch before they have left themselves.
func (g *Group) abandoned() bool {
	gone := g.life.dead()
	all := g.haveHeard()
	for rank := range g.size {
		switch {
		case rank == g.rank, slices.Contains(gone, rank), runner.Detached(g.memory.at(), g.size, rank):
		case g.peers[rank].GaveUp():
			g.life.lost(rank)
		default:
			all = false
		}
	}
	return all
}
