package pgbackend

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// This file finds out what ranks of other hosts have called and how far they are. That crosses when it is asked for (docs/protocol.md,
// section 16, ASK and STATE).

// Times of questions.
const (
	stateLimit = 200 * time.Millisecond // how long a diagnosis waits for answers,
	stateSlice = time.Millisecond       // and how often it looks for them
)

// farTick is how long the operations of a rank do not go on before it asks. Tests change it.
var farTick = 250 * time.Millisecond

// askFar asks the ranks of other hosts for their states: what they have called, how far they are, and for whom they wait. It returns when those
// of all that have not left lie in the shadows, or after stateLimit.
// Requires: the group is acquired.
func (g *Group) askFar() {
	waits := map[*remoteControl]int64{}
	for rank, r := range g.remotes {
		if r == nil {
			continue
		}
		if _, left := g.run.LastCall(rank); !left {
			waits[r] = r.states.Load()
			g.links.network.set.Ask(r.pair)
		}
	}
	for until := time.Now().Add(stateLimit); len(waits) > 0 && time.Now().Before(until); time.Sleep(stateSlice) {
		maps.DeleteFunc(waits, func(r *remoteControl, n int64) bool { return r.states.Load() != n })
	}
	for _, r := range g.remotes {
		if r != nil {
			_, silent := waits[r]
			r.silent.Store(silent)
		}
	}
}

// lastCall says what a rank has called last, as the end of a sentence about it.
func (g diagnosis) lastCall(rank int) string {
	did, last := "has called no collective yet", g.last(rank)
	if call, ok := g.run.Announced(rank, last); ok {
		did = "last called " + call.Op.Describe(last)
	}
	if r := g.remote(rank); r == nil || !r.silent.Load() {
		return did
	}
	if last > 0 {
		return "had " + strings.TrimPrefix(did, "has ") + " when it last answered, and does not answer now: it may be stopped, or its host busy"
	}
	return "does not answer, so it is not known what it has called: it may be stopped, or its host busy"
}

// followFar compares the calls of this rank with those of ranks on other hosts while operations do not go on, until the group has a cause. Where
// no data moves between two ranks that have made different calls, neither of them finds out by itself. It is a goroutine of the group.
func (g *Group) followFar() {
	defer recoverFrom("the comparison of calls between hosts")
	tick := time.NewTicker(farTick)
	defer tick.Stop()
	for before := ""; ; {
		select {
		case <-g.announced:
			return
		case <-tick.C:
		}
		now := g.unfinishedNow()
		if now != "" && now == before {
			g.guard(g.compareFar)
		}
		before = now
	}
}

// unfinishedNow returns a text that changes while operations go on, "" where none is unfinished.
func (g *Group) unfinishedNow() (text string) {
	if !g.life.acquire() {
		return ""
	}
	defer g.life.release()
	for _, l := range g.lanes() {
		if n := l.run.Unfinished(); n > 0 {
			text += fmt.Sprint(l.run.Lane(), n, l.run.Sequence(), l.run.Consumed(g.rank), " ")
		}
	}
	return text
}

// compareFar declares a mismatch if the calls of a rank on another host differ from this one's.
func (g *Group) compareFar() {
	if !g.life.acquire() {
		return
	}
	defer g.life.release()
	g.askFar()
	for _, l := range g.lanes() {
		d := diagnosis{g, l.run}
		for rank, r := range g.remotes {
			if r == nil {
				continue
			}
			if f := d.differsFrom(rank); f != nil && g.cause.Load() == nil {
				g.declareFailure(f)
				return
			}
		}
	}
}

// differsFrom returns the failure of the first call in which this rank and another one differ, nil if they know of none.
func (g diagnosis) differsFrom(rank int) *coll.Failure {
	if call, _, found := g.difference(rank, min(g.last(g.rank), g.last(rank))); found {
		return g.mismatch(runner.Incident{Code: runner.Mismatch, Peer: rank, Sequence: call.Sequence, Op: call.Op})
	}
	return nil
}
