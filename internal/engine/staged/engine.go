package staged

import (
	"errors"
	"fmt"
	"sync"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// Engine implements engine.Engine on devices of any type.
type Engine struct {
	*host.Engine // makes the programs
	run          *runner.Group
	rank, size   int
	pool         *Pool
	open         func(runner.Call, coll.Op) (device.Access, error)

	// issuing is held from the first command of an operation until the operation is numbered: commands of operations are queued in
	// the order of their numbers.
	issuing sync.Mutex
	streams map[place]*streams  // of collectives; guarded by issuing
	written map[place]outputs   // guarded by issuing
	p2p     map[origin]*streams // guarded by issuing
	chosen  map[*streams]int    // p2p operations that go into these and are not queued yet; guarded by issuing
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of a device lane. programs is the host engine of the same lane, and open is FromCall or a test's
// replacement.
func New(programs *host.Engine, run *runner.Group, rank, size int, pool *Pool, open func(runner.Call, coll.Op) (device.Access, error)) *Engine {
	return &Engine{Engine: programs, run: run, rank: rank, size: size, pool: pool, open: open,
		streams: map[place]*streams{}, written: map[place]outputs{}, p2p: map[origin]*streams{}, chosen: map[*streams]int{}}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return "staged" }

// Issue implements engine.Engine.
func (e *Engine) Issue(call runner.Call, op coll.Op, p engine.Prepared) (err error) {
	defer func() {
		if err != nil && !p.Kept {
			p.Program.Free()
		}
	}()
	b, err := e.open(call, op)
	if err != nil {
		return &engine.Refusal{Err: e.errorOf(op, err)}
	}
	_, waits := b.(device.Waiter)
	l := layoutOf(call.In(), call.Out(), writes(op, e.rank))
	l.cut(op, e.size, p.Program, waits)
	return e.issueCollective(b, op, &l, func(gate runner.Gate) error {
		return e.run.SubmitAtGate(call, op.Bytes(), p.Program, !p.Kept, gate)
	})
}

// issueCollective queues the commands of an operation. submit numbers it, behind them.
func (e *Engine) issueCollective(b device.Access, op coll.Op, l *layout, submit func(runner.Gate) error) error {
	_, waits := b.(device.Waiter)
	memory, err := e.pool.acquire(b, source{op.Device.Type, b.Name()}, l.bytes)
	if err != nil {
		return e.errorOf(op, err)
	}
	defer e.pool.release(memory)
	on := place{op.Device, b.Name()}
	s, err := e.streamsOn(b, on)
	if err != nil {
		return e.errorOf(op, err)
	}
	q := e.queueFor(b, on, s, memory, l)
	defer e.issuing.Unlock()
	defer q.close()
	if waits {
		err = e.comeBehindOutputs(b, on, s, l)
	}
	if err == nil {
		err = enqueue(b, memory, l, q)
	}
	if err != nil {
		err = e.errorOf(op, err)
	} else {
		err = submit(runner.Gate{Words: memory.words, Window: l.window, Inputs: l.in.units, Outputs: l.out.waited(),
			In: l.in.pinned(memory), Out: l.out.pinned(memory)})
	}
	if err != nil { // a stream may wait for this operation
		memory.words.Open()
	} else if waits {
		e.noteOutputs(on, memory, l)
	}
	return err
}

// Waits reports whether a stream of this engine, of any group of the process, may wait for a peer.
func (e *Engine) Waits() bool { return e.pool.waits() }

func (e *Engine) errorOf(op coll.Op, err error) error {
	return fmt.Errorf("sagecomm: %s: rank %d: buffers on %v: %w", op.Name(), e.rank, op.Device, err)
}

// writes reports whether a rank's output has to be copied back. The root of a broadcast has it on the device.
func writes(op coll.Op, rank int) bool {
	return op.Writes(rank) && (op.Kind != coll.Broadcast || op.Root != rank)
}

// streamsOn returns the streams of this engine on a device. It makes them without a lock.
func (e *Engine) streamsOn(rt device.Runtime, on place) (*streams, error) {
	if s := e.collectiveStreams(on, nil); s != nil {
		return s, nil
	}
	made, _, err := e.pool.takeStreams(rt, on, device.Outputs)
	if err != nil {
		return nil, err
	}
	s := e.collectiveStreams(on, made)
	if s != made { // another thread was faster
		e.pool.giveStreams(on, made)
	}
	return s, nil
}

// collectiveStreams returns the streams of collectives on a device. If there are none yet, they are those that were made, which may be nil.
func (e *Engine) collectiveStreams(on place, made *streams) *streams {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	if s := e.streams[on]; s != nil || made == nil {
		return s
	}
	e.streams[on] = made
	return made
}

// enqueue queues the commands of an operation: all of them where streams can wait.
func enqueue(b device.Access, memory *block, l *layout, q *queue) error {
	if waiter, waits := b.(device.Waiter); waits {
		return enqueueAll(b, waiter, memory, l, q)
	}
	return enqueueInput(b, memory, l, q)
}

// enqueueAll queues all commands of an operation. Group by group, one stream brings the input into pinned memory as soon as there is
// room, and the other one copies the output back as soon as it is there, so that copies and the program overlap.
//
// The stream of the output waits for the input of a group as well. In this way it comes behind what the caller's stream held, also
// after an error, which ends the waits for the program. Its last wait is for the end of the run, behind which nothing of this
// operation touches the gate. A send has nothing there: its caller waits for the input alone, and the run ends the use of the block.
func enqueueAll(order device.Ordering, rt device.Waiter, memory *block, l *layout, q *queue) (err error) {
	w := memory.words
	if err := order.Fork(q.in); err != nil {
		return err
	}
	q.begin(memory, l, true)
	memory.awaited.Store(!l.sends)
	defer func() {
		if err != nil { // what is queued by now uses the buffers when the waits are ended
			_, _ = order.Join(q.out), order.Join(q.in)
		}
	}()
	wait := func(side int, word *uint32, value uint32) error {
		return q.queue(side, func(s device.Stream) error { return rt.WaitValue(s, word, value) })
	}
	write := func(side int, word *uint32, value uint32) error {
		return q.queue(side, func(s device.Stream) error { return rt.WriteValue(s, word, value) })
	}
	err = l.in.groups(l.stride, func(from, to uint32) error {
		if l.window != 0 && to > l.window {
			if err := wait(sideIn, w.InputTaken(), to-l.window); err != nil {
				return err
			}
		}
		for _, c := range l.in.copies(memory, l.chunk, from, to) {
			if err := q.queue(sideIn, func(s device.Stream) error { return rt.CopyIn(s, c) }); err != nil {
				return err
			}
		}
		return write(sideIn, w.InputReady(), to)
	})
	if err != nil {
		return err
	}
	if l.sends {
		return order.Join(q.in)
	}
	err = l.out.groups(l.stride, func(from, to uint32) error {
		done := to
		if to == l.out.units {
			done = runner.GateComplete
		}
		if err := wait(sideOut, w.InputReady(), min(to, l.in.units)); err != nil {
			return err
		}
		if err := wait(sideOut, w.OutputDone(), done); err != nil {
			return err
		}
		for _, c := range l.out.copies(memory, l.chunk, from, to) {
			if err := q.queue(sideOut, func(s device.Stream) error { return rt.CopyOut(s, c) }); err != nil {
				return err
			}
		}
		return write(sideOut, w.OutputTaken(), to)
	})
	if err != nil {
		return err
	}
	if !l.out.copied() { // whoever waits for the operation waits until its input was read
		return order.Join(q.in)
	}
	if err = q.makeRoom(sideOut, l.out.rows()); err != nil {
		return err
	}
	q.count(sideOut, l.out.rows()) // the framework queues them behind the end
	return order.Join(q.out)
}

// enqueueInput queues the input of an operation on a device whose streams cannot wait for a word. The caller of the library
// queues the copies back when the operation is complete. They come behind what the caller's stream held, because the input does.
func enqueueInput(access device.Access, memory *block, l *layout, q *queue) error {
	caller, ok := access.(device.Deferrer)
	if !ok {
		return errors.New("neither the streams of the device nor the caller of the library can wait for an operation")
	}
	if err := q.beginAlone(caller, memory, l); err != nil {
		return err
	}
	err := l.in.groups(l.stride, func(from, to uint32) error {
		for _, c := range l.in.copies(memory, l.chunk, from, to) {
			q.count(sideIn, 1)
			if err := access.CopyIn(q.in, c); err != nil {
				return err
			}
		}
		q.count(sideIn, 1)
		return access.WriteValue(q.in, memory.words.InputReady(), to)
	})
	if err != nil {
		return err
	}
	return caller.JoinLater(q.out, device.End{Copies: l.out.copies(memory, l.chunk, 0, l.out.units), Taken: memory.words.OutputTaken(),
		Value: l.out.units})
}

// Close implements engine.Engine.
func (e *Engine) Close() {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	for on, s := range e.streams {
		e.pool.giveStreams(on, s)
	}
	clear(e.streams)
	clear(e.written)
	e.closeP2P()
}
