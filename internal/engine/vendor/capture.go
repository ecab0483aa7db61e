package vendor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

// This file makes operations parts of graphs. Their commands go into the caller's stream, which is being captured: a stream of the library
// would have to be joined with it before the capture ends, and would keep that capture's part of any later operation. Nothing runs, so
// nothing is numbered, announced or recorded. What the operation does when the graph is launched is the Member's.

var errGivenUp = errors.New("the device has given the capture up, after a call that captures do not allow")

// prepareCaptured finds out whether an operation can be captured. why is that of staged.Captured.
func (e *Engine) prepareCaptured(call runner.Call, op coll.Op, why error) (engine.Prepared, error) {
	c := e.communicatorOf(op.Device)
	switch {
	case !errors.Is(why, device.ErrCaptured):
		return engine.Prepared{}, e.refuse(op, why)
	case c == nil:
		return engine.Prepared{}, e.refuse(op, errors.New("the stream is being captured, and the group has no communicator on this device yet; call a collective of the group on this device once before the capture"))
	case c.joined == nil:
		return e.without.Prepare(call, op)
	case !e.method.Supports(op):
		return engine.Prepared{}, e.refuse(op, why)
	}
	if _, captures := c.joined.(Capturer); !captures {
		return engine.Prepared{}, e.refuse(op, why)
	}
	return engine.Prepared{Captured: true}, nil
}

// issueCaptured makes an operation a part of the graph.
func (e *Engine) issueCaptured(c *communicator, call runner.Call, op coll.Op) error {
	if err := e.issuing.take(call, e.gone); err != nil {
		return e.refuse(op, err)
	}
	defer e.issuing.give()
	if e.down.Load() {
		return runner.ErrDown
	}
	member := c.joined.(Capturer)
	stream := device.Stream{Handle: op.Stream}
	begun, err := e.capture(c, member, stream, call, op)
	if err == nil {
		e.captured.Add(1)
		return nil
	}
	if begun { // a launch of such a graph would leave peers waiting, and a library may queue the rest when the stream is captured no more
		number, lost := member.Device().CaptureOf(stream)
		if queued, broken := c.state(); number != 0 || lost != nil || !queued || broken != nil {
			// Not report: its wait handles signals, whose handlers may use the device, which a capture does not take.
			e.group.Fail(fmt.Errorf("%s on %v: the capture has a part of the operation only: %w", op.Name(), op.Device, err))
			e.endNow(c, call, listens(call, errors.Is(err, ErrInterrupted)), op)
		}
	}
	if e.down.Load() || e.group.Failed() {
		return runner.ErrDown // the caller has the cause
	}
	return e.refuse(op, err)
}

// capture queues the commands of an operation in the caller's stream.
// Requires: issuing.
func (e *Engine) capture(c *communicator, member Capturer, stream device.Stream, call runner.Call, op coll.Op) (begun bool, err error) {
	c.graphs.capturing.Add(1)
	defer c.graphs.capturing.Add(-1)
	rt := member.Device()
	s, err := sidesOf(call.In(), call.Out(), op, e.group.Rank, func(bytes uint64) (uintptr, error) { return c.takeCaptured(rt, bytes) })
	if err != nil {
		return false, err
	}
	return c.inOrder(rt, stream, func(number uint64) (begun bool, err error) {
		return c.counting(rt, stream, number, func() (begun bool, err error) {
			if err := s.gather(rt, stream); err != nil {
				return false, err
			}
			err = c.with(func() (err error) {
				begun, err = member.Capture(op, s.buffers(), stream, number)
				return err
			})
			if err != nil {
				return begun, err
			}
			if err := c.poll(waitFor(call, nil)); err != nil {
				return true, err
			}
			return true, s.spread(rt, stream)
		})
	})
}

// inOrder queues the commands of an operation behind those of the operation before it in the same capture, also if their streams differ:
// the ranks meet in the order of their operations. queue gets the number of the capture.
// Requires: Engine.issuing.
func (c *communicator) inOrder(rt device.Capturer, stream device.Stream, queue func(number uint64) (begun bool, err error)) (begun bool, err error) {
	number, err := rt.CaptureOf(stream)
	if err == nil && number == 0 {
		err = errGivenUp
	}
	if err == nil && c.captured.mark == nil {
		c.captured.mark, err = rt.NewMark()
	}
	if err == nil && number == c.captured.number {
		err = c.captured.mark.Follow(stream)
	}
	if err != nil {
		return false, err
	}
	if begun, err = queue(number); err != nil {
		return begun, err
	}
	if err := c.captured.mark.Set(stream); err != nil {
		return true, err
	}
	c.captured.number = number
	return true, nil
}

// counting counts the graph that a capture makes with its first operation, which queue begins. Where the driver does not tell when the graph
// ends, it counts for ever once an operation has begun.
// Requires: Engine.issuing.
func (c *communicator) counting(rt device.Capturer, stream device.Stream, number uint64, queue func() (begun bool, err error)) (begun bool, err error) {
	if number == c.captured.number {
		return queue()
	}
	untold := c.countOn(rt).Add(stream)
	if untold != nil {
		now, err := rt.CaptureOf(stream)
		if err == nil && now == 0 {
			err = errGivenUp
		}
		if err != nil {
			return false, err
		}
	}
	begun, err = queue()
	if begun && untold != nil {
		c.graphs.uncounted.Store(true)
	}
	return begun, err
}

// countOn returns the count of the communicator's graphs, and makes it for the first of them.
// Requires: Engine.issuing.
func (c *communicator) countOn(rt device.Capturer) device.GraphCount {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if c.graphs.count == nil {
		c.graphs.count = rt.NewGraphCount()
		c.engine.graphs = append(c.engine.graphs, &c.graphs)
	}
	return c.graphs.count
}

// takeCaptured returns the address of memory with so much room for an operation of a graph. Captured operations of a group run one after
// the other, so they share it. Memory that was too small is given back once there are no graphs.
// Requires: Engine.issuing.
func (c *communicator) takeCaptured(rt device.Capturer, bytes uint64) (uintptr, error) {
	if older := c.captured.older; len(older) > 0 && c.graphsLeft() == (Graphs{}) {
		c.captured.older = nil
		c.engine.group.Go(func() { c.behind(func() { releaseAll(older) }) }) // a driver may wait for the device
	}
	if bytes > c.captured.room {
		room := max(c.captured.room, leastScratch)
		for room < bytes {
			room *= 2
		}
		var memory device.Memory
		err := rt.Relaxed(func() (err error) {
			memory, err = rt.Allocate(room, c.engine.library())
			return err
		})
		if err != nil {
			return 0, err
		}
		if c.captured.memory != nil {
			c.captured.older = append(c.captured.older, c.captured.memory)
		}
		c.captured.memory, c.captured.room = memory, room
	}
	return c.captured.memory.Address(), nil
}

// releaseAll gives memory back. Requires: no graph and no kernel uses it.
func releaseAll(list []device.Memory) {
	for _, m := range list {
		m.Release()
	}
}

// Captured returns how many operations graphs have got.
func (e *Engine) Captured() uint64 {
	n := e.captured.Load()
	if other, ok := e.without.(*Engine); ok {
		n += other.Captured()
	}
	return n
}

// Graphs are those that have operations of an engine, or of a communicator, and may be running.
type Graphs struct {
	Live      int  // that were not destroyed
	Uncounted bool // there are others, and the driver does not tell when they end
}

// Graphs returns those of the engine.
func (e *Engine) Graphs() Graphs {
	var all Graphs
	if other, ok := e.without.(*Engine); ok {
		all = other.Graphs()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.graphs {
		left := g.left()
		all.Live += left.Live
		all.Uncounted = all.Uncounted || left.Uncounted
	}
	return all
}

// ownGraphs are those of one communicator.
type ownGraphs struct {
	capturing atomic.Int64      // operations that are being captured, whose graph may not be counted yet
	uncounted atomic.Bool       // there are some whose end the driver does not tell
	count     device.GraphCount // of the others; nil: there was no capture; set once. Guarded by Engine.mu.
}

// left returns those that may be running. Requires: Engine.mu.
func (g *ownGraphs) left() (left Graphs) {
	left.Uncounted = g.uncounted.Load()
	if g.count != nil {
		left.Live = g.count.Live()
	}
	return left
}

func (c *communicator) graphsLeft() Graphs {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	return c.graphs.left()
}

func (c *communicator) hasGraphs() bool {
	return c.graphs.capturing.Load() > 0 || c.graphsLeft() != (Graphs{})
}

// Between two looks for graphs that are left.
const graphsEvery = 100 * time.Millisecond

// awaitGraphs returns when no graph has operations of a communicator that is closed. It reports false where the driver does not tell.
func (c *communicator) awaitGraphs() bool {
	for sleep := time.Millisecond; c.graphsLeft().Live > 0; sleep = min(2*sleep, graphsEvery) {
		time.Sleep(sleep)
	}
	return !c.graphs.uncounted.Load()
}
