package observe

import (
	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// Group is a group of this process as its observers see it. Values of it are equal if and only if they are the same group.
type Group interface {
	// Acquire keeps what the other methods read in place until Release. It returns false when the group is being destroyed
	// and nothing of it may be read any more.
	Acquire() bool
	Release()

	Header() *Header
	Settings() *env.Settings
	Cause() *coll.Failure // the first cause of failure, nil while there is none
	Members() []Member    // by rank
	Dead() []int          // ranks whose processes have ended
	Classes(coll.Kind) []algo.Class
	Run() Run // Requires: the group is acquired.
}

// Run is what observers read of the runner's group. *runner.Group implements it.
type Run interface {
	Sequence() uint64
	Flights() runner.FlightLog
	Recorder(rank int) runner.Recorder
	Counters() runner.Counters
	Stats() []runner.Stat
	TakeTrace() (events []runner.Event, dropped uint64)
	LastCall(rank int) (sequence uint64, left bool)
	Announced(rank int, sequence uint64) (runner.Announced, bool)
	Awaits(rank int) int
}

// Header is what does not change in a group, besides its description.
type Header struct {
	ID          uint64 `json:"id"` // of the group in the rank's process, while it lives
	Group       string `json:"group"`
	Description string `json:"description"`
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`
	Global      []int  `json:"global,omitempty"` // numbers in the job by rank; nil: the same
	Capacity    int    `json:"capacity"`         // of the flight recorder; 0: it is off
	Prefix      string `json:"prefix"`           // of the names of operations
}

// NoDescription is the description of a group that its user has not described, as torch has it.
const NoDescription = "undefined"

// GlobalRank is the number of a rank in the job.
func (h *Header) GlobalRank(rank int) int {
	if rank >= 0 && rank < len(h.Global) {
		return h.Global[rank]
	}
	return rank
}

// Member is the process of one rank.
type Member struct {
	Host    string
	PID     int
	Process procwatch.ID
	Arena   []byte      // the rank's arena, as this process has it mapped
	Nonce   shmem.Nonce // of the arena
	Front   int64       // offset of the arena's front page, see [Listing]
}

// releaseAll releases groups that were acquired.
func releaseAll(groups []Group) {
	for _, g := range groups {
		g.Release()
	}
}
