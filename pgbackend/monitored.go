package pgbackend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// MonitoredCause returns the group's first cause as a monitored barrier of this rank raises it. If the barrier timed
// out, the message begins with gloo's words, which programs look for and which differ between rank 0 and the others.
// timeout is the barrier's timeout, or 0 if the caller only asks for the cause. With all, the message names every
// missing rank, otherwise the lowest one.
func (g *Group) MonitoredCause(timeout time.Duration, all bool) *coll.Failure {
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	f := g.failed()
	last, _ := g.run.LastCall(g.rank)
	if f == nil || f.Status != coll.Timeout || f.Op != coll.Barrier.String() || f.Sequence != last {
		return f
	}
	missing := g.missingFrom(f.Sequence)
	if f.Rank >= 0 && f.Rank != g.rank && !slices.Contains(missing, f.Rank) { // it has arrived since
		missing = append(missing, f.Rank)
	}
	slices.Sort(missing)
	worded := *f
	worded.Message = inGloosWords(g.rank, missing, timeout, all) + "; " + f.Message
	return &worded
}

// missing is the ranks that had not begun a collective of the host lane when this rank has diagnosed its timeout.
type missing struct {
	sequence uint64
	ranks    []int
}

// keepAbsent keeps which ranks have not begun a collective, in a group over several hosts, for who words that timeout
// otherwise: to ask them again would take time.
func (g diagnosis) keepAbsent(sequence uint64, ranks []int) {
	if g.remotes != nil && g.run.Lane() == runner.HostLane {
		g.incidents.missing.Store(&missing{sequence, slices.Clone(ranks)})
	}
}

// monitoredLimit bounds how long a thread that words a timeout waits for answers: for less time than a signal may wait.
const monitoredLimit = 100 * time.Millisecond

// missingFrom returns the ranks that have not begun a collective of the host lane, in rising order. Ranks of other
// hosts are only asked if another rank has diagnosed its timeout, and there is a link to them: a group that has failed
// makes no more. Of one that does not answer it is not known then, so it is left out: whom the diagnosis has found, its
// failure says. Requires: the group is acquired, and has failed.
func (g *Group) missingFrom(sequence uint64) (list []int) {
	if known := g.incidents.missing.Load(); known != nil && known.sequence == sequence {
		return slices.Sorted(slices.Values(known.ranks))
	}
	unlinked, asked := []int{}, []int{}
	for _, rank := range g.remoteRanks() {
		if g.remotes[rank].pair.HasLink() { // a link that is made meanwhile changes nothing
			asked = append(asked, rank)
		} else {
			unlinked = append(unlinked, rank)
		}
	}
	unanswered := g.ask(monitoredLimit, asked...)
	for rank := range g.size {
		if rank != g.rank && !slices.Contains(unlinked, rank) && !slices.Contains(unanswered, rank) && (diagnosis{g, g.run}).begun(rank) < sequence {
			list = append(list, rank)
		}
	}
	return list
}

func inGloosWords(rank int, missing []int, timeout time.Duration, all bool) string {
	switch {
	case rank != 0:
		return fmt.Sprintf("Rank %d successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0", rank)
	case timeout == 0 || len(missing) == 0:
		return fmt.Sprintf("Rank 0 timed out in monitoredBarrier after %d ms", timeout.Milliseconds())
	case !all || len(missing) == 1:
		return fmt.Sprintf("Rank %d failed to pass monitoredBarrier in %d ms", missing[0], timeout.Milliseconds())
	}
	names := make([]string, len(missing))
	for i, rank := range missing {
		names[i] = strconv.Itoa(rank)
	}
	return fmt.Sprintf("Ranks %s failed to pass monitoredBarrier in %d ms", strings.Join(names, ", "), timeout.Milliseconds())
}
