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
	process          *Process
	id               uint64 // number of the group in this process, from 1
	born             time.Time
	name             string
	rank             int
	size             int
	global           []int // global rank of each rank; nil: equal to the group rank
	settings         *env.Settings
	options          map[string]string            // of Config
	birth            *birth                       // nil: the group met over a store of the caller
	shrinking        sync.Mutex                   // guards shrinks and aborting
	shrinks          map[string]int               // number of groups that were made by Shrink with a list, by the list's text
	aborting         []uint64                     // the shrinks in which this rank has taken part that may abort the group
	flights          int                          // capacity of the flight recorder, in operations
	timeline         bool                         // the group keeps events for the timeline
	members          []member                     // by rank
	hosts            [][]int                      // the ranks of each host, hosts in the order of their first ranks
	hostOf           []int                        // by rank: index in hosts
	secret           []byte                       // of rank 0, for links between hosts, until the group is made
	links            *groupLinks                  // nil: all ranks are on this host
	unlinked         atomic.Pointer[coll.Failure] // the loss of a link, for which the group cannot be made
	kin              *kin                         // of the rendezvous; nil: the group has no parent
	news             lossNews                     // of the rendezvous
	peers            []runner.Peer
	lane                                  // of operations on host memory
	device           atomic.Pointer[lane] // of operations on devices; nil before the first one
	opening          sync.Mutex           // held while the device lane is opened, and while the timeout is set
	operationTimeout atomic.Int64         // of operations, in ns; changed under opening
	memory           *groupMemory
	own              *processArena // made for this group alone; nil: the group uses the process's arena
	maps             []*shmem.Mapping
	awaited          int       // the first rank of which abandoned does not know that it is gone; under process.mu
	watching         bool      // the peers' processes are watched
	keys             string    // prefix of the group's keys in the store
	deadline         time.Time // end of the rendezvous
	final            bool      // a second try would fail too
	tuningSettings   tuningSettings
	selector         *algo.Selector
	probed           networkProbe      // of the links between hosts
	deviceEngine     algo.EngineChoice // of the device lane, of the rendezvous: see engines
	laterEngines     atomic.Pointer[algo.EngineChoice]
	deviceChoices    atomic.Pointer[algo.DeviceChoices] // of the engine cuda, for the devices of the newest communicator
	choosing         sync.Mutex                         // guards refusals
	refusals         map[string][]string                // of engines that ranks have come to do without: why, by rank
	buckets          *buckets                           // gathers the collectives of the host lane; nil: the group does not fuse

	cause           atomic.Pointer[coll.Failure]
	clean           atomic.Bool                              // the cause is that the group was destroyed, without a failure before
	givenUp         atomic.Pointer[coll.Failure]             // operations on devices that Destroy has not waited for to the end
	cut             sync.Once                                // of declareCut
	declaredCut     atomic.Bool                              // through the arbiter
	announced       chan struct{}                            // closed when failure callbacks and the dump of the cause are behind
	incidents       incidents                                // of a group over several hosts
	arbiter         *arbiter                                 // decides the first cause of a group over several hosts; nil: the failure word does
	recause         func(run *runner.Group, f *coll.Failure) // replaces the cause with which a lane is down; set where arbiter is
	replacing       sync.Mutex                               // guards provisional
	provisional     bool                                     // the cause is this rank's own until the arbiter has the verdict
	failureCallback failureCallback                          // called when the group fails or is destroyed

	life     lifetime
	settling settling     // the wait for operations at the end of the group
	mourning atomic.Int32 // number of deaths of peers that are being looked at
	control  [topicCount]controlTopic
	remotes  []*remoteControl // control areas of ranks of other hosts, by rank; nil: all ranks are on this host

	// compiling guards what the engines of both lanes have compiled, and the growth of memory. It is held while
	// programs are compiled, which may take tenths of a second.
	compiling sync.Mutex

	composites atomic.Int64 // number of composite operations that are not complete
	sparseSums atomic.Int64 // number of sparse all_reduces that this rank has issued
	exchanges  atomic.Int64 // number of control exchanges that are under way on this rank

	// lostExchange is set when an exchange fails. Finish reads it in a group that has failed.
	lostExchange atomic.Bool

	description atomic.Pointer[string] // the user's description of the group
	stacks      observe.Stacks
}

// member is the description of a rank that the rank publishes in the rendezvous.
type member struct {
	Host        string           `json:"host"`
	HostSetting string           `json:"host_setting,omitempty"` // SAGECOMM_HOSTID
	Network     uint64           `json:"network_namespace,omitempty"`
	Number      uint64           `json:"number"`               // drawn at random; that of rank 0 is the group's in frames between hosts
	Secret      []byte           `json:"secret,omitempty"`     // of rank 0 without a secret of the job: drawn at random, for links between hosts
	HasSecret   bool             `json:"has_secret,omitempty"` // it has a secret of the job
	Encrypts    bool             `json:"encrypts,omitempty"`   // a setting of TLS is made
	PID         int              `json:"pid"`
	Arena       shmem.Descriptor `json:"arena"`
	// By lane: the offset of its shared block in its arena, and that of its flight recorder, 0 for a private one.
	Shared      [runner.Lanes]int64 `json:"shared"`
	FlightLog   [runner.Lanes]int64 `json:"flight_log"`
	Control     int64               `json:"control"`           // offset of its control area in its arena
	Flights     int                 `json:"flights,omitempty"` // capacity of each flight recorder, in operations
	Stacks      bool                `json:"stacks,omitempty"`  // its flight recorder keeps call stacks
	Setup       setup               `json:"setup"`
	Processors  topo.CPUSet         `json:"processors,omitempty"` // processors that its process may run on
	Machine     string              `json:"machine,omitempty"`    // name of its machine in tuning files; all ranks use rank 0's
	Probe       probeResult         `json:"probe"`                // result of its probe; agree combines those of all ranks
	Engines     algo.Offers         `json:"engines"`              // engines of the device lane that it offers
	Place       *topo.Place         `json:"place,omitempty"`      // of the device that it is taken to use
	ArenaAbsent string              `json:"arena_absent,omitempty"`
	Listener    *listener           `json:"listener,omitempty"` // of its process, if the group meets at a unique id
}

func (g *Group) info(format string, args ...any) {
	if env.Debug.Get(g.settings) >= env.Info {
		observe.Log("INFO", fmt.Sprintf("group %q rank %d: ", g.name, g.rank)+fmt.Sprintf(format, args...))
	}
}

// Rank returns the group rank of this process.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in the group.
func (g *Group) Size() int { return g.size }

// globalRank returns the global rank of a group rank.
func (g *Group) globalRank(rank int) int {
	if rank >= 0 && rank < len(g.global) {
		return g.global[rank]
	}
	return rank
}

// Handle returns the handle by which the C ABI names the group.
func (g *Group) Handle() uint64 { return g.run.Handle() }

// Sequence returns the number of collectives on host memory that this rank has issued.
func (g *Group) Sequence() uint64 { return g.run.Issued() }

// SetTimeout changes the timeout of later operations. It refuses durations that are not positive, and a group that was
// destroyed.
func (g *Group) SetTimeout(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("sagecomm: set_timeout: %v is not a positive duration", d)
	}
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	g.opening.Lock() // so that a lane that is being opened gets it too
	defer g.opening.Unlock()
	g.operationTimeout.Store(int64(d))
	for _, l := range g.lanes() {
		l.run.SetTimeout(d)
	}
	return nil
}

// timeout returns the timeout of operations.
func (g *Group) timeout() time.Duration { return time.Duration(g.operationTimeout.Load()) }

// Cause returns the first cause of the group's failure, or nil if it has not failed.
func (g *Group) Cause() *coll.Failure { return g.cause.Load() }

// FirstCause returns the first cause of the group's failure, also when the group is destroyed; nil if that has not
// failed before. The verdict on a group over several hosts may still come while it is destroyed. Where Destroy has
// given up operations on devices, for which the caller has not waited, that is the cause.
func (g *Group) FirstCause() *coll.Failure {
	if g.clean.Load() {
		return g.givenUp.Load()
	}
	return g.cause.Load()
}
