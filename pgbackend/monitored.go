package pgbackend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
)

// MonitoredCause returns the group's first cause as a monitored barrier of this rank raises it. If the barrier timed out, the
// message begins with gloo's words, which programs look for and which differ between rank 0 and the others. timeout is the
// barrier's timeout, or 0 if the caller only asks for the cause. With all, the message names every missing rank, otherwise the
// lowest one.
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
	g.askRemotes()
	missing, _ := diagnosis{g, g.run}.evidence().absent(f.Sequence, f.Rank)
	if f.Rank >= 0 && f.Rank != g.rank && !slices.Contains(missing, f.Rank) { // it has arrived since
		missing = append(missing, f.Rank)
	}
	slices.Sort(missing)
	worded := *f
	worded.Message = inGloosWords(g.rank, missing, timeout, all) + "; " + f.Message
	return &worded
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
