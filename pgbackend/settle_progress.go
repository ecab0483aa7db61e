package pgbackend

import "sagecomm/internal/runner"

// This file finds out how far the operations on devices are for which the end of a group waits.

// progress is how far the operations on devices are that this rank has called.
type progress struct {
	called uint64 // those that ranks have called and those that their streams have reached, as far as this rank knows
	left   int    // the least number that was left
	late   bool   // a stream is late
}

// progress returns how far the operations on devices are that this rank has called. What peers call beyond them does
// not count: nothing here waits for that.
func (g *Group) progress() (p progress) {
	d := g.device.Load()
	if d == nil {
		return p
	}
	p.left, p.late = d.run.Unfinished(), g.streamIsLate()
	if mine, called := d.run.LastIn(runner.DeviceLane, g.rank); called {
		for rank := range g.size {
			if last, has := d.run.LastIn(runner.DeviceLane, rank); has {
				p.called += min(last.Sequence, mine.Sequence)
			}
			p.called += min(d.run.Reached(rank), mine.Sequence)
		}
	}
	return p
}

// goesOn takes a newer progress and reports whether that is one.
func (p *progress) goesOn(now progress) bool {
	changed := now.called != p.called || now.late != p.late || now.left < p.left
	now.left = min(now.left, p.left)
	*p = now
	return changed
}

// streamIsLate reports whether all ranks have called the collective of the device lane that is under way here, and the
// stream of one of them has not reached it, or whether a p2p operation of this rank waits for a stream.
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

// reports reports whether the engine of the device lane has an error that is about to make the group fail.
func (g *Group) reports() bool {
	d := g.device.Load()
	if d == nil {
		return false
	}
	e, has := d.engine.(interface{ Reports() bool })
	return has && e.Reports()
}

// unreached returns the ranks of other hosts of which it is not known that their streams have reached the collective of
// the device lane that is under way here. There are none where nothing is under way.
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
