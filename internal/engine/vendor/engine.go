package vendor

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
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

	// Without is called on all ranks when some of them cannot use the library: reasons has a text for each of these, else "". Their
	// operations go through the staged engine then, unless it returns an error.
	Without func(reasons []string) error

	// Fail makes the group fail.
	Fail func(err error)
}

// Engine implements engine.Engine with a vendor's library.
type Engine struct {
	*staged.Engine // p2p operations, and what the library cannot do
	group          Group
	library        Library
	pool           *Pool
	open           func(runner.Call, coll.Op) (device.Access, error)

	making sync.Mutex // held while the ranks make a communicator

	// issuing is held from the first command of an operation until the operation is numbered, as in the staged engine.
	issuing sync.Mutex

	mu    sync.Mutex // guards known; held for an instant
	known map[coll.Device]*communicator
	down  atomic.Bool // the group is down
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.P2P    = (*Engine)(nil)
)

// New returns the engine of a device lane. others carries out the operations that the library does not.
func New(library Library, g Group, others *staged.Engine, pool *Pool, open func(runner.Call, coll.Op) (device.Access, error)) *Engine {
	return &Engine{Engine: others, group: g, library: library, pool: pool, open: open, known: map[coll.Device]*communicator{}}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return e.library.Name() }

// Prepare implements engine.Engine. The first collective on a device makes the communicator, which waits for all ranks.
func (e *Engine) Prepare(call runner.Call, op coll.Op) (engine.Prepared, error) {
	c, err := e.communicatorFor(call, op)
	if err != nil {
		return engine.Prepared{}, e.errorOf(op, err)
	}
	if c.joined == nil || !supports(e.library, op) {
		return e.Engine.Prepare(call, op)
	}
	program, err := runner.NewExternal(op.Kind, op.Type, e.library.Name())
	return engine.Prepared{Program: program}, err
}

// Issue implements engine.Engine.
func (e *Engine) Issue(call runner.Call, op coll.Op, p engine.Prepared) error {
	c := e.communicatorOf(op.Device)
	if c.joined == nil {
		return e.Engine.Issue(call, op, p)
	}
	access, err := e.open(call, op)
	if err != nil {
		err = &engine.Refusal{Err: e.errorOf(op, err)}
	} else if rt, ok := access.(device.Launcher); !ok { // it was one when the communicator was made
		err = e.errorOf(op, fmt.Errorf("the device is reached through %s now, whose streams take no kernels", access.Name()))
	} else {
		e.issuing.Lock()
		defer e.issuing.Unlock()
		if supports(e.library, op) {
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

// issueHere queues an operation in the stream of the communicator, and numbers it.
// Requires: issuing.
func (e *Engine) issueHere(c *communicator, rt device.Launcher, order device.Ordering, call runner.Call, op coll.Op, p engine.Prepared) error {
	if e.down.Load() {
		return runner.ErrDown
	}
	words, err := e.pool.gate(rt, source{op.Device.Type, rt.Name()})
	if err != nil {
		return e.errorOf(op, err)
	}
	c.last.Store(words)
	if err = e.enqueue(c, rt, order, words, call, op); err != nil {
		err = e.errorOf(op, err)
	} else {
		err = e.group.Run.SubmitAtGate(call, op.Bytes(), p.Program, true, runner.Gate{Words: words, Inputs: 1, Outputs: 1, External: true,
			In: call.In(), Out: call.Out()})
	}
	if err != nil {
		words.Open() // no run has it
		c.abort()    // peers do not join its kernels
	}
	return err
}

// enqueue queues an operation: behind the caller's stream, the library's kernels in the stream of the communicator, and whoever
// waits for the operation behind that. The device writes the words of the gate before and after the kernels.
// Requires: issuing.
func (e *Engine) enqueue(c *communicator, rt device.Launcher, order device.Ordering, words *runner.GateWords, call runner.Call, op coll.Op) (err error) {
	if err := order.Fork(c.stream); err != nil {
		return err
	}
	defer func() {
		if err != nil { // what is queued by now uses the buffers until the kernels are ended
			_ = rt.WriteValue(c.stream, words.InputReady(), 1)
			_ = rt.WriteValue(c.stream, words.OutputTaken(), 1)
			_ = order.Join(c.stream)
		}
	}()
	if err := e.GoBefore(rt, op.Device, c.stream); err != nil {
		return err
	}
	if err := rt.WriteValue(c.stream, words.InputReady(), 1); err != nil {
		return err
	}
	s, err := c.sides(rt, call, op, e.group.Rank)
	if err != nil {
		return err
	}
	if err := s.gather(rt, c.stream); err != nil {
		return err
	}
	if err := c.do(rt, callsFor(e.library, op, e.group.Rank, e.group.Size, s.buffers())); err != nil {
		return err
	}
	if err := s.spread(rt, c.stream); err != nil {
		return err
	}
	if err := rt.WriteValue(c.stream, words.OutputTaken(), 1); err != nil {
		return err
	}
	return order.Join(c.stream)
}

func (e *Engine) errorOf(op coll.Op, err error) error {
	return fmt.Errorf("sagecomm: %s: rank %d: buffers on %v: %s: %w", op.Name(), e.group.Rank, op.Device, e.library.Name(), err)
}

// Abort implements engine.Engine.
func (e *Engine) Abort() {
	e.Engine.Abort()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down.Store(true)
	for _, c := range e.known {
		if !c.idle() {
			c.abort()
		}
	}
}

// Close implements engine.Engine.
func (e *Engine) Close() {
	e.mu.Lock()
	list := e.known
	e.known = map[coll.Device]*communicator{}
	e.mu.Unlock()
	for on, c := range list {
		if c.close() {
			e.pool.giveStream(place{on, c.runtime}, c.stream)
		}
	}
	e.Engine.Close()
}
