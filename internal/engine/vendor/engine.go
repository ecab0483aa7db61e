package vendor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/bridge"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

// Group is what an engine needs of its group.
type Group struct {
	Run        *runner.Group
	Rank, Size int
	Host       string               // of this rank
	Timeout    func() time.Duration // of an operation

	// Exchange gives every rank the messages of all ranks. All ranks call it alike. It ends early if the group fails.
	Exchange func(purpose string, mine []byte) ([][]byte, error)

	// Unique gives every rank the unique id that rank 0 has.
	Unique func(mine []byte) ([][]byte, error)

	// Settled is called on all ranks when they know whether they use the library on the devices that they use now: reasons has a
	// text for each rank that cannot, else "". If there is one, operations on these devices go through the staged engine, unless it
	// returns an error. failed tells that a rank has tried to join; then the group does without the library on all devices.
	Settled func(reasons []string, failed bool) error

	// Failed reports whether a rank has declared that the group has failed.
	Failed func() bool

	// Cut is called before operations that are under way are ended, in a group that is down. Where that has not failed it tells the other
	// ranks, whose operations may end without their data then.
	Cut func()

	// Left reports whether all other ranks have left the group or have died: they need nothing of this rank any more. It may be called when
	// the group's memory is gone.
	Left func() bool

	// Fail makes the group fail. The error may be ErrInterrupted.
	Fail func(err error)

	// ReportWait is how long an error of the library waits for a failure that explains it before it makes the group fail.
	ReportWait time.Duration

	// Info logs what explains how operations are carried out.
	Info func(text string)

	// Warn prints what the user should know although no operation fails by it.
	Warn func(err error)

	// Guard calls a function. A panic of it makes the group fail, or is only printed where the group's memory is gone.
	Guard func(f func())

	exits     func() bool // reports whether the process ends
	hasGraphs func() bool // of a communicator
}

// HasGraphs reports whether graphs may have operations of the communicator whose join it was. Where the driver tells
// when graphs end, one that captures no more has none some time after the last one.
func (g *Group) HasGraphs() bool { return g.hasGraphs == nil || g.hasGraphs() }

// Go calls a function on a goroutine, in Guard. No engine has another goroutine: a panic in one would end the user's process.
func (g *Group) Go(f func()) { go g.Guard(f) }

// Engine implements engine.Engine with a Method.
type Engine struct {
	*staged.Engine // p2p operations, and what communicators do not carry out
	group          Group
	method         Method
	without        engine.Engine // carries out collectives on devices where the ranks do without the method
	pool           *Pool
	open           func(runner.Call, coll.Op) (device.Access, error)

	joining sync.Mutex // held while the ranks make a communicator; guards refused
	refused []string   // why ranks could not join; nil: all have

	// issuing is held from the number of an operation until its last command: operations stand in the stream in the order of their
	// numbers.
	issuing turn

	captured atomic.Uint64 // operations
	reports  atomic.Int64  // errors that wait until the group is down

	told [coll.KindCount]atomic.Bool // the user knows that such reductions go through host memory

	mu     sync.Mutex // guards what follows; held for an instant
	known  map[coll.Device]*communicator
	making map[coll.Device]*making
	early  map[coll.Device]bool // whose early calls are made
	graphs []*ownGraphs         // of the communicators that have captured
	down   atomic.Bool          // the group is down
	gone   chan struct{}        // closed then
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.P2P    = (*Engine)(nil)
)

// New returns the engine of a device lane. others carries out the operations that communicators do not. without is that engine,
// or one that was made with it.
func New(method Method, g Group, others *staged.Engine, without engine.Engine, pool *Pool, open func(runner.Call, coll.Op) (device.Access, error)) *Engine {
	g.exits = func() bool { return pool.exits.Load() }
	return &Engine{Engine: others, group: g, without: without, method: method, pool: pool, open: open, issuing: newTurn(),
		known: map[coll.Device]*communicator{}, making: map[coll.Device]*making{}, early: map[coll.Device]bool{},
		gone: make(chan struct{})}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return e.method.Name() }

// IssueP2P implements engine.P2P. Streams may wait for the operation, so what waits for the device comes before it.
func (e *Engine) IssueP2P(call runner.Call, op coll.Op) error {
	switch err := e.beEarly(call, op); err {
	case nil:
	case runner.ErrDown:
		return err
	default:
		return e.refuse(op, errEarly)
	}
	return e.Engine.IssueP2P(call, op)
}

var errEarly = errors.New("a signal has interrupted the wait for the device, which loads kernels")

// beEarly makes the early calls of the methods, before the first p2p operation on a device. A goroutine makes them, and the caller handles
// signals meanwhile. One who is interrupted leaves the goroutine alone; the next call waits for it.
func (e *Engine) beEarly(call runner.Call, op coll.Op) error {
	e.mu.Lock()
	over := e.early[op.Device]
	e.mu.Unlock()
	if over || staged.Captured(call, op) != nil { // a captured operation is refused
		return nil
	}
	done := make(chan struct{})
	e.group.Go(func() {
		defer close(done)
		e.group.Guard(func() { e.earlyCalls(op.Device) })
	})
	if err := wait(call, done, e.gone); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.early[op.Device] = true
	return nil
}

// earlyCalls makes the early calls of the methods that may carry out collectives on the device. A communicator has made its own when it was
// made. A library leaves the device to another method only if it cannot be used, so that one's calls do not come while a stream waits.
func (e *Engine) earlyCalls(on coll.Device) {
	switch c := e.communicatorOf(on); {
	case c == nil && e.library() && e.waits(), c != nil && c.joined != nil:
		return
	}
	if m, ok := e.method.(Early); ok {
		m.Early(on)
	}
	if w, ok := e.without.(*Engine); ok {
		w.earlyCalls(on)
	}
}

// waits reports whether a stream of an engine of the process waits for a peer.
func (e *Engine) waits() bool { return e.pool.waits() || e.Waits() }

// library reports whether the method is that of a vendor's library.
func (e *Engine) library() bool {
	_, ok := e.method.(calls)
	return ok
}

// Prepare implements engine.Engine. The first collective on a device makes the communicator, which waits for all ranks.
func (e *Engine) Prepare(call runner.Call, op coll.Op) (engine.Prepared, error) {
	if err := staged.Captured(call, op); err != nil {
		return e.prepareCaptured(call, op, err)
	}
	c, err := e.communicatorFor(call, op)
	if err != nil {
		return engine.Prepared{}, err
	}
	switch {
	case c.joined == nil:
		return e.without.Prepare(call, op)
	case !c.carries(op):
		c.tellOfHost(op)
		return e.Engine.Prepare(call, op)
	}
	if b, ok := c.joined.(Bounded); ok {
		if err := b.Bound(op); err != nil {
			return engine.Prepared{}, e.refuse(op, err)
		}
	}
	program, err := runner.NewExternal(op.Kind, op.Type, e.method.Name())
	return engine.Prepared{Program: program}, err
}

// Issue implements engine.Engine. Once the operation is numbered, an error of the device or of the library makes the group fail, and
// with it the operation. The first operations of a kind wait for peers here: see communicator.do.
func (e *Engine) Issue(call runner.Call, op coll.Op, p engine.Prepared) error {
	c := e.communicatorOf(op.Device)
	if c.joined == nil {
		return e.without.Issue(call, op, p)
	}
	if p.Captured {
		return e.issueCaptured(c, call, op)
	}
	access, rt, err := e.launcher(call, op)
	if err == nil {
		err = c.lacksScaler(op, rt)
	}
	if err == nil {
		err = e.issuing.take(call, e.gone)
	}
	if err != nil {
		err = e.refuse(op, err)
	} else {
		defer e.issuing.give()
		if c.carries(op) {
			err = e.issueHere(c, rt, access, call, op, p)
		} else if err = e.ComeBehind(rt, op.Device, c.stream); err == nil {
			return e.Engine.Issue(call, op, p)
		} else {
			err = e.errorOf(op, err)
		}
	}
	if err != nil && !p.Kept {
		p.Program.Free()
	}
	return err
}

// launcher opens the device of an operation. It was a Launcher when the communicator was made.
func (e *Engine) launcher(call runner.Call, op coll.Op) (device.Access, device.Launcher, error) {
	access, err := e.open(call, op)
	if err != nil {
		return nil, nil, err
	}
	rt, ok := access.(device.Launcher)
	if !ok {
		return nil, nil, fmt.Errorf("the device is reached through %s now, whose streams take no kernels", access.Name())
	}
	return access, rt, nil
}

// issueHere numbers an operation and queues it in the stream of the communicator. The run begins at the gate, whose words the stream
// writes, so it may be announced before the library has connected the ranks.
// Requires: issuing.
func (e *Engine) issueHere(c *communicator, rt device.Launcher, order device.Ordering, call runner.Call, op coll.Op, p engine.Prepared) error {
	if e.down.Load() {
		return runner.ErrDown
	}
	from := source{op.Device.Type, rt.Name()}
	gate, err := e.pool.takeGate(rt, from)
	if err != nil {
		return e.errorOf(op, err)
	}
	err = e.group.Run.SubmitAtGate(call, op.Bytes(), p.Program, true, runner.Gate{Words: gate.GateWords, Inputs: 1, Outputs: 1, External: true, Void: c.joined.Void(),
		In: call.In(), Out: call.Out()})
	if err != nil {
		e.pool.giveGate(from, gate)
		return err
	}
	timeout := op.Timeout
	if timeout == 0 {
		timeout = e.group.Timeout()
	}
	e.pool.limit(e.group.Run.Handle(), gate, time.Now().Add(timeout))
	c.last.Store(&gate)
	e.group.Run.Begin() // records the call before the streams of the ranks meet
	if err = e.enqueue(c, rt, order, gate, call, op); err != nil {
		e.fail(c, rt, order, gate, call, op, fmt.Errorf("%s on %v: %s: %w", op.Name(), op.Device, e.method.Name(), err))
	}
	return nil
}

// enqueue queues an operation: behind the caller's stream, the library's kernels in the stream of the communicator, and whoever
// waits for the operation behind that. The device writes the words of the gate before and after the kernels.
// Requires: issuing.
func (e *Engine) enqueue(c *communicator, rt device.Launcher, order device.Ordering, gate use, call runner.Call, op coll.Op) error {
	if err := order.Fork(c.stream); err != nil {
		return err
	}
	if err := e.GoBefore(rt, op.Device, c.stream); err != nil {
		return err
	}
	if err := rt.WriteValue(c.stream, gate.InputReady(), 1); err != nil {
		return err
	}
	beside := c.scalingOf(op, rt)
	in, err := beside.before(c.stream, call.In())
	if err != nil {
		return err
	}
	s, err := sidesOf(in, call.Out(), op, e.group.Rank, func(bytes uint64) (uintptr, error) { return c.scratch.take(rt, bytes, e.library(), gate) })
	if err != nil {
		return err
	}
	if err := s.gather(rt, c.stream); err != nil {
		return err
	}
	if err := c.do(rt, call, beside.op, s.buffers()); err != nil {
		return err
	}
	if err := s.spread(rt, c.stream); err != nil {
		return err
	}
	if err := beside.behind(c.stream, s.out.segments); err != nil {
		return err
	}
	if err := order.Join(c.stream); err != nil { // before the word: the device may write that at once, and so end an operation that has failed
		return err
	}
	return rt.WriteValue(c.stream, gate.OutputTaken(), 1)
}

// fail makes the group fail because an operation was numbered and not queued, or not known to be. What is queued uses the buffers until the
// kernels are ended, so the operation ends with the stream, behind the last command that the library may queue. The group is down before the
// stream says that the operation is done.
func (e *Engine) fail(c *communicator, rt device.Launcher, order device.Ordering, gate use, call runner.Call, op coll.Op, err error) {
	caller := listens(call, errors.Is(err, ErrInterrupted))
	e.report(err, caller.look)
	if e.endNow(c, call, caller, op) {
		_ = rt.WriteValue(c.stream, gate.InputReady(), 1)
		_ = rt.WriteValue(c.stream, gate.OutputTaken(), 1)
	}
	_ = order.Join(c.stream)
}

// endNow ends a communicator whose library may be about to queue commands of an operation that has failed: in a thread, as NCCL, or in a call that
// waits for peers, as HCCL and CNCL. It reports whether none comes any more. Where the library is not through soon, nobody gets the buffers of the
// operation, and the stream and the memory of the communicator, any more.
// Requires: the thread of the call.
func (e *Engine) endNow(c *communicator, call runner.Call, caller *listener, op coll.Op) bool {
	c.abort() // peers do not join its kernels; no further call of the library begins
	if c.settles(caller) {
		return true
	}
	c.kept.Store(true)
	b, err := bridge.New(call.Bridge())
	if err == nil {
		err = b.Keep()
	}
	if err != nil {
		e.group.Warn(fmt.Errorf("%w. Do not free the buffers of this operation: it has failed in a call that may still use them until the process ends", e.errorOf(op, err)))
	}
	return false
}

// refuse returns the error for a call that this rank may not make.
func (e *Engine) refuse(op coll.Op, err error) error {
	return &engine.Refusal{Err: e.errorOf(op, err)}
}

func (e *Engine) errorOf(op coll.Op, err error) error {
	return fmt.Errorf("sagecomm: %s: rank %d: buffers on %v: %s: %w", op.Name(), e.group.Rank, op.Device, e.method.Name(), err)
}

// Abort implements engine.Engine. A group that is destroyed comes here, too: the ranks end their communicators together now, and not
// when they free their memory.
func (e *Engine) Abort() {
	e.without.Abort()
	for _, c := range e.goDown() {
		c.down()
	}
}

// goDown notes that the group is down, and returns the communicators that were known by then.
func (e *Engine) goDown() []*communicator {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.down.Swap(true) {
		close(e.gone)
	}
	return slices.Collect(maps.Values(e.known)) // their Release may panic, whose recovery comes here again
}

// Close implements engine.Engine.
func (e *Engine) Close() {
	e.mu.Lock()
	list := e.known
	e.known = map[coll.Device]*communicator{}
	e.mu.Unlock()
	for _, c := range list {
		if c.joined != nil {
			c.close()
		}
	}
	e.without.Close()
}
