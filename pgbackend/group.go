package pgbackend

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
	"sagecomm/internal/topo"
)

// Group is one rank's side of a process group.
type Group struct {
	process        *Process
	id             uint64 // of this process's groups, from 1
	born           time.Time
	name           string
	rank           int
	size           int
	global         []int // ranks of the job by rank; nil: the same
	settings       *env.Settings
	flights        int      // operations that its flight recorder keeps
	timeline       bool     // it keeps events for the timeline
	members        []member // by rank
	peers          []runner.Peer
	run            *runner.Group
	memory         *groupMemory
	own            *store // the shared block's, if it was made for this group alone
	maps           []*shmem.Mapping
	watching       bool      // its peers
	keys           string    // where its ranks meet in the store
	deadline       time.Time // of that
	different      bool      // ranks are set up differently: nothing to try again
	tuningSettings tuningSettings
	selector       *algo.Selector

	cause           atomic.Pointer[coll.Failure]
	failureCallback failureCallback // rung when there is a cause, or will be none

	life lifetime

	// compiling guards classes and the growth of memory. It is held while programs are compiled, which may take tenths of a
	// second.
	compiling sync.Mutex
	classes   [coll.KindCount][]algo.Class // of the kinds that were used

	composites atomic.Int64 // composite operations that are not complete
	sparseSums atomic.Int64 // that this rank has issued

	description atomic.Pointer[string] // what its user calls it
	stacks      observe.Stacks
}

// member is what a rank tells the others about itself.
type member struct {
	Host        string           `json:"host"`
	HostID      string           `json:"host_id"`
	PID         int              `json:"pid"`
	Arena       shmem.Descriptor `json:"arena"`
	Shared      int64            `json:"shared"`
	Flights     int              `json:"flights,omitempty"`    // operations that its flight recorder keeps
	FlightLog   int64            `json:"flight_log,omitempty"` // offset of that in its arena, 0: it is not in there
	Stacks      bool             `json:"stacks,omitempty"`     // it records who called
	Setup       setup            `json:"setup"`
	Processors  topo.CPUSet      `json:"processors,omitempty"` // that it may run on
	Machine     string           `json:"machine,omitempty"`    // as a tuning file calls it; that of rank 0 counts
	Probe       probeResult      `json:"probe"`                // what they agree on
	ArenaAbsent string           `json:"arena_absent,omitempty"`
}

func (g *Group) info(format string, args ...any) {
	if env.Debug.Get(g.settings) >= env.Info {
		observe.Log("INFO", fmt.Sprintf("group %q rank %d: ", g.name, g.rank)+fmt.Sprintf(format, args...))
	}
}

// Rank is this rank's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.size }

// globalRank is the number of a rank in the job.
func (g *Group) globalRank(rank int) int {
	if rank >= 0 && rank < len(g.global) {
		return g.global[rank]
	}
	return rank
}

// Handle is what the C ABI calls the group.
func (g *Group) Handle() uint64 { return g.run.Handle() }

// Sequence is the number of collectives issued so far.
func (g *Group) Sequence() uint64 { return g.run.Sequence() }

// SetTimeout changes the timeout of later operations.
func (g *Group) SetTimeout(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("sagecomm: set_timeout: %v is not a positive duration", d)
	}
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	g.run.SetTimeout(d)
	return nil
}

// Cause is the first cause of failure, nil while there is none.
func (g *Group) Cause() *coll.Failure { return g.cause.Load() }
