package pgbackend

import (
	"fmt"
	"sync"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
)

// Process holds what all groups of one process share: memory, progress engine, observers, the watch over peers. There
// is one Process in a process.
type Process struct {
	mu         sync.Mutex
	groups     map[uint64]*Group // by handle, until they are destroyed
	lanes      map[uint64]*Group // groups by the handles of their device lanes
	leaving    []*Group          // groups without calls whose memory peers may still touch
	memory     memory
	engine     progressEngine
	peers      map[procwatch.ID]*peerProcess
	observers  *observe.Observers
	staging    *staged.Pool      // pinned memory and streams of operations on devices
	vendors    *vendor.Pool      // gates and streams of vendors' libraries
	server     *bootstrap.Server // of the stores of unique ids
	networks   networks          // links to processes of other hosts
	linkProbes linkProbes        // what these links cost
	created    uint64            // number of groups created so far
	seats      map[seat]*birth   // ranks of unique ids that this process has, while they join and as long as their groups exist
	inVain     time.Time         // time at which Destroy last gave up waiting for peers

	factors       sync.Mutex                     // guards factorReaders
	factorReaders map[coll.Device][]factorReader // by which no factor is being read

	choosing  sync.Mutex // guards selectors
	selectors map[selectorKey]*algo.Selector
	probing   sync.Once
	found     probeResult // result of the probe, set by probing
	placing   sync.Once
	gpus      []topo.Place // of this process, set by placing
	unwatched sync.Once    // prints the warning about peers that cannot be watched
	unrouted  sync.Once    // prints the warning that no interface leads to MASTER_ADDR
	files     sync.Once    // prints the warning that groups use files
}

var (
	theProcess *Process
	makeOnce   sync.Once
)

// inherited lets forked children close what belongs to stores of unique ids.
var inherited = bootstrap.Descriptors{Opened: runner.CloseInChild, Closing: runner.KeepInChild}

// Get returns the Process of this process.
func Get() *Process {
	makeOnce.Do(func() {
		theProcess = &Process{groups: map[uint64]*Group{}, seats: map[seat]*birth{}, lanes: map[uint64]*Group{}, peers: map[procwatch.ID]*peerProcess{}, staging: staged.NewPool(), vendors: vendor.NewPool(), server: bootstrap.NewServer(inherited), networks: newNetworks(), linkProbes: newLinkProbes(), factorReaders: map[coll.Device][]factorReader{}, selectors: map[selectorKey]*algo.Selector{}}
		theProcess.observers = observe.New(theProcess.acquired)
		runner.SetHandler(theProcess)
	})
	return theProcess
}

// Group returns the group of a handle, or nil if there is none.
func (p *Process) Group(handle uint64) *Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.groups[handle]
}

// groupOf returns the group that has a lane of that handle, or nil if there is none.
func (p *Process) groupOf(handle uint64) *Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.groups[handle]; g != nil {
		return g
	}
	return p.lanes[handle]
}

func (p *Process) snapshot() []*Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*Group, 0, len(p.groups))
	for _, g := range p.groups {
		list = append(list, g)
	}
	return list
}

// Shutdown destroys all groups in parallel, so it takes as long as the longest Destroy, and waits a bounded time until
// the done functions of all operations have returned.
func (p *Process) Shutdown() {
	var all sync.WaitGroup
	for _, g := range p.snapshot() {
		all.Go(func() {
			defer recoverFrom("Destroy of a group")
			_ = g.destroy(false) // an error if another goroutine destroys it
		})
	}
	all.Wait()
	for begin := time.Now(); runner.Completing() && time.Since(begin) < ShimWaits.Hooks; {
		time.Sleep(200 * time.Microsecond)
	}
	p.closeNetworks()
	p.server.Close()
	p.vendors.Wait()
	p.observers.Finish()
}

// fellBack warns that groups use files. It does so once in a process, because the reason is the same for all groups but
// for names in its text.
func (p *Process) fellBack(g *Group, reason error) {
	p.files.Do(func() {
		observe.Warn("group %q uses a file in %s, as others may, because its ranks cannot share memory that has no name: %v",
			g.name, env.ShmDir.Get(g.settings), reason)
	})
}

// Issue implements runner.Handler.
func (p *Process) Issue(handle uint64, call runner.Call) (f *coll.Failure) {
	g := p.groupOf(handle)
	if g == nil || !g.life.acquire() {
		return destroyed("")
	}
	defer g.life.release()
	defer g.recoverInto(&f)
	return g.issue(call)
}

// Fuse implements runner.Handler.
func (p *Process) Fuse(handle uint64, calls []runner.Call) (batches []uint32, f *coll.Failure) {
	g := p.groupOf(handle)
	if g == nil || !g.life.acquire() {
		return nil, destroyed("")
	}
	defer g.life.release()
	defer g.recoverInto(&f)
	return g.fuse(calls)
}

// Incident implements runner.Handler.
func (p *Process) Incident(handle uint64, t runner.Incident) {
	if g := p.groupOf(handle); g != nil && g.life.acquire() {
		var f *coll.Failure
		defer g.life.release()
		defer g.recoverInto(&f)
		g.incident(g.of(handle), t)
	}
}

// Fail implements runner.Handler.
func (p *Process) Fail(handle uint64, cause *coll.Failure) {
	if g := p.groupOf(handle); g != nil && g.life.acquire() {
		var f *coll.Failure
		defer g.life.release()
		defer g.recoverInto(&f)
		g.fail(cause)
	}
}

// Trace implements runner.Handler.
func (p *Process) Trace(handle uint64, call runner.Call) {
	if g := p.groupOf(handle); g != nil && g.life.acquire() {
		var f *coll.Failure
		defer g.life.release()
		defer g.recoverInto(&f)
		op := call.Op(g.size)
		text := op.Describe(0)
		if !op.Device.IsHost() {
			text += " on " + op.Device.String()
		}
		observe.Log("TRACE", fmt.Sprintf("group %q rank %d: %s", g.name, g.rank, text))
	}
}

// Want implements runner.Handler.
func (p *Process) Want(handle uint64, use func(runner.Agreement)) {
	if g := p.groupOf(handle); g != nil && g.buckets != nil && g.life.acquire() {
		var f *coll.Failure
		defer g.life.release()
		defer g.recoverInto(&f)
		g.buckets.want(use)
	}
}

// Fifo implements runner.Handler.
func (p *Process) Fifo(handle uint64, peer int) {
	if g := p.groupOf(handle); g != nil && g.life.acquire() {
		var f *coll.Failure
		defer g.life.release()
		defer g.recoverInto(&f)
		g.makeFifo(g.of(handle), peer)
	}
}

func destroyed(group string) *coll.Failure {
	return &coll.Failure{Status: coll.Invalid, Rank: -1, Group: group, Message: "sagecomm: the group was destroyed"}
}
