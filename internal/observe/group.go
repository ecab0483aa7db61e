package observe

import (
	"unsafe"

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
	DeviceEngine() string // name of the engine of the device lane, which all ranks have chosen
	// Lanes returns the lanes that this process has opened, the host lane first. Requires: the group is acquired.
	Lanes() []Lane
}

// Lane is one lane of a group that this process has opened.
type Lane struct {
	Number  runner.Lane
	Engine  string // name of its engine, which may leave operations to others
	Devices string // types of the devices of this rank's operations so far, joined by "+"; "cpu" on the host lane
	Run     Run

	// Transport names what moves bytes of host memory between ranks: "shm", with "+tcp" in a group over several hosts.
	Transport string

	// External has the engines that carry out external runs of the lane, whose algorithm is the name of the engine, each with its
	// transport. Staged is the name of the engine that carries out the other runs. Both are empty where Engine carries out all.
	External map[string]string
	Staged   string

	Captured uint64 // operations that graphs have got
}

// carrier returns the engine that has carried out the operations of a row of statistics, and the transport. A row of all types
// and sizes may have those of several engines: "any".
func (l Lane) carrier(s runner.Stat) (engine, transport string) {
	if l.Staged == "" {
		return l.Engine, l.Transport
	}
	if over, external := l.External[s.Algorithm]; external {
		return s.Algorithm, over
	}
	if s.Kind.Collective() && s.Algorithm == "" {
		return "any", "any"
	}
	return l.Staged, l.Transport
}

// Run is the part of a lane of the runner that observers read. *runner.Group implements it.
type Run interface {
	Issued() uint64
	Flights() runner.FlightLog
	Recorder(rank int) runner.Recorder
	Counters() runner.Counters
	Stats() []runner.Stat
	TakeTrace() (events []runner.Event, dropped uint64)
	LastCall(rank int) (sequence uint64, left bool)
	Awaits(rank int) int

	// The next two read lanes that this process need not have opened.

	LastIn(lane runner.Lane, rank int) (runner.Announced, bool)
	Reached(rank int) uint64
}

// hostRun returns the runner's part of the host lane. Requires: the group is acquired.
func hostRun(g Group) Run { return g.Lanes()[0].Run }

// laneName is the name of a lane in statistics, records and metrics.
func laneName(l runner.Lane) string {
	if l == runner.DeviceLane {
		return "device"
	}
	return "host"
}

// Header holds the data of a group that never changes, and its description.
type Header struct {
	ID          uint64 `json:"id"` // number of the group, unique in the rank's process, from 1
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

	// Its flight recorders in the arena: by lane the offset, 0 for a private one; the capacity, 0 for none.
	Logs     [runner.Lanes]int64
	Capacity int
	Stacks   bool
}

// recorder returns the recorder of a lane in the arena. It is empty if there is none, or if the rank has not opened the lane.
func (m *Member) recorder(lane runner.Lane) runner.Recorder {
	if m.Logs[lane] == 0 || len(m.Arena) == 0 {
		return runner.Recorder{}
	}
	r, _ := runner.RecorderAt(unsafe.Pointer(&m.Arena[0]), int64(len(m.Arena)), m.Logs[lane], m.Capacity, m.Stacks)
	return r
}

// releaseAll releases groups that were acquired.
func releaseAll(groups []Group) {
	for _, g := range groups {
		g.Release()
	}
}
