package observe

import (
	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// Group is an observer's view of a group of this process. Two values are equal exactly if they describe the same group.
type Group interface {
	// Acquire keeps the memory that the other methods read in place until Release. It returns false if the group is no
	// longer live; then the caller must not read it.
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

// Run is the part of the runner's group that observers read. *runner.Group implements it.
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

// Header holds the data of a group that never changes, and its description.
type Header struct {
	ID          uint64 `json:"id"` // number of the group, unique in the rank's process
	Group       string `json:"group"`
	Description string `json:"description"`
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`
	Global      []int  `json:"global,omitempty"` // global rank of each rank; nil: equal to the group rank
	Capacity    int    `json:"capacity"`         // capacity of the flight recorder, in operations; 0: it is off
	Prefix      string `json:"prefix"`           // prefix of the names of operations
}

// NoDescription is torch's description of a group that its user has not described.
const NoDescription = "undefined"

// GlobalRank returns the global rank of a group rank.
func (h *Header) GlobalRank(rank int) int {
	if rank >= 0 && rank < len(h.Global) {
		return h.Global[rank]
	}
	return rank
}

// Member describes the process of one rank.
type Member struct {
	Host    string
	PID     int
	Process procwatch.ID
	Arena   []byte      // the rank's arena, as this process has it mapped
	Nonce   shmem.Nonce // nonce of the arena
	Front   int64       // offset of the arena's front page, see [Listing]
}

// releaseAll releases groups that were acquired.
func releaseAll(groups []Group) {
	for _, g := range groups {
		g.Release()
	}
}
