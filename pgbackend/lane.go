package pgbackend

import (
	"strings"
	"sync/atomic"
	"time"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// lane is one lane of a group: the runner's part of it, and the engine that carries out its operations.
type lane struct {
	run    *runner.Group
	engine engine.Engine
	types  atomic.Uint64 // bit t is set if this rank has issued an operation on a device of type t; for observers
}

// saw notes the type of the device of an operation.
func (l *lane) saw(t coll.DeviceType) { l.types.Or(1 << t) }

// devices returns the types of the devices of this rank's operations so far.
func (l *lane) devices() string {
	if l.run.Lane() == runner.HostLane {
		return coll.HostMemory.String()
	}
	var names []string
	for t, seen := coll.DeviceType(0), l.types.Load(); seen != 0; t, seen = t+1, seen>>1 {
		if seen&1 != 0 {
			names = append(names, t.String())
		}
	}
	return strings.Join(names, "+")
}

// lower compiles slot plans. Tests replace it with a function that fails.
var lower = host.Compile

// openAccess gives access to the device of an operation. Tests replace it.
var openAccess = staged.FromCall

// openGroup makes the runner's part of a lane. Tests replace it with a function that fails.
var openGroup = runner.OpenGroup

// open makes a lane from the mapped arenas.
func (g *Group) open(number runner.Lane, timeout time.Duration) (*runner.Group, error) {
	peers := make([]runner.Peer, g.size)
	for rank, p := range g.peers {
		if m := g.members[rank]; p.Flights > 0 {
			p.FlightLog = m.FlightLog[number]
		}
		peers[rank] = p
	}
	fuses := number == runner.HostLane && g.buckets != nil
	return openGroup(runner.Config{Rank: g.rank, Lane: number, Host: g.run, Timeout: timeout, Backoff: backoff(g.settings, g.crowdedHere(), g.apart()), FailureRank: g.failureRank(),
		StreamBytes: streamBytes, Flights: g.flights, Stacks: g.RecordsStacks(), Timeline: g.timeline, Trace: env.Debug.Get(g.settings) >= env.Trace, Fuses: fuses,
		Geometry: g.geometry(), Policy: policy, Peers: peers})
}

// failureRank returns the rank whose shared block has the failure word: in a group over several hosts each rank has its
// own.
func (g *Group) failureRank() int {
	if g.apart() {
		return g.rank
	}
	return 0
}

// hostEngine returns an engine that moves the buffers of a lane, which are host memory, through the runner.
func (g *Group) hostEngine(run *runner.Group) *host.Engine {
	return host.New(host.Lane{Run: run, Selector: g.selector, Rank: g.rank, Size: g.size, Lock: &g.compiling,
		Grow:  func(bytes int64) (int64, error) { return g.memory.more(bytes) },
		Meet:  g.openPair,
		Lower: func(p plan.SlotPlan, op coll.Op) (runner.Compiled, error) { return lower(p, op) }})
}

// lanes returns the lanes that this process has opened, the host lane first.
func (g *Group) lanes() []*lane {
	list := []*lane{&g.lane}
	if d := g.device.Load(); d != nil {
		list = append(list, d)
	}
	return list
}

// down takes both lanes down. A lane that is opened at the same time finds the cause (openDeviceLane).
// Requires: g.cause is set.
func (g *Group) down() {
	cause := g.cause.Load()
	for _, l := range g.lanes() {
		l.run.Down(cause)
		l.engine.Abort()
	}
}

// unfinishedRuns returns a number above zero while an operation of a lane is not complete or a thread uses the group.
func (g *Group) unfinishedRuns() (n int) {
	for _, l := range g.lanes() {
		n += l.run.Unfinished()
	}
	return n
}

// deviceLane returns the lane of an operation on a device. The first call opens it.
func (g *Group) deviceLane(op coll.Op) (*lane, *coll.Failure) {
	if d := g.device.Load(); d != nil {
		return d, nil
	}
	if g.deviceEngine.Engine == "" {
		return nil, g.refuse(op, g.noEngine(op))
	}
	g.opening.Lock()
	defer g.opening.Unlock()
	if d := g.device.Load(); d != nil {
		return d, nil
	}
	d, err := g.openDeviceLane()
	if err != nil {
		return nil, g.broken(op, err)
	}
	if d == nil {
		return nil, destroyed(g.name)
	}
	return d, nil
}

// openDeviceLane opens the device lane. It returns nil if the group is no longer one of the process.
// Requires: g.opening.
func (g *Group) openDeviceLane() (*lane, error) {
	run, err := g.open(runner.DeviceLane, g.timeout())
	if err != nil {
		return nil, err
	}
	d := &lane{run: run}
	if d.engine, err = g.openEngine(run); err != nil {
		run.Down(g.broken(coll.Op{}, err))
		run.Close()
		return nil, err
	}
	g.showMet(run)
	p := g.process
	p.mu.Lock()
	gone := p.groups[g.Handle()] != g
	if !gone {
		g.device.Store(d)
		p.lanes[run.Handle()] = g
	}
	p.mu.Unlock()
	if gone {
		g.hideMet(run)
		run.Down(destroyed(g.name))
		d.engine.Close()
		run.Close()
		return nil, nil
	}
	g.stacks.AddLane(run.PutStack) // another goroutine may issue an operation an instant earlier; then its stack lacks for as long
	// A group that fails sets the cause, then looks for the lane; this looks for the cause after it has stored the lane.
	if f := g.cause.Load(); f != nil {
		g.goDown(f, false)
	}
	p.engine.changed(p)
	return d, nil
}

// of returns the lane with a handle.
// Requires: the handle is that of a lane of the group.
func (g *Group) of(handle uint64) *runner.Group {
	if d := g.device.Load(); d != nil && d.run.Handle() == handle {
		return d.run
	}
	return g.run
}
