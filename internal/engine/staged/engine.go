package staged

import (
	"fmt"
	"sync"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/bridge"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// maxFlags bounds the writes of InputReady of one operation, and with them the commands that it queues: a stream has room for
// about a thousand, and each costs the issuing thread some microseconds.
const maxFlags = 16

// Engine implements engine.Engine on devices of any type.
type Engine struct {
	*host.Engine // makes the programs
	run          *runner.Group
	rank         int
	pool         *Pool
	open         func(runner.Call, coll.Op) (Access, error)

	// issuing is held from the first command of an operation until the operation is numbered: operations stand in the streams
	// in the order of their numbers.
	issuing sync.Mutex
	streams map[place]streams  // of collectives; guarded by issuing
	p2p     map[origin]streams // guarded by issuing
}

var _ engine.Engine = (*Engine)(nil)

// Access is what the engine needs of the device of one operation.
type Access interface {
	device.Ordering
	device.Runtime
}

// FromCall returns the access to the device of a call: the bridge that the caller of the C ABI brings along, or the driver.
func FromCall(call runner.Call, op coll.Op) (Access, error) {
	if call.Bridge() == nil && op.Device.Type == coll.CUDA {
		return cuda.New(op)
	}
	return bridge.New(call.Bridge())
}

// New returns the engine of a device lane. programs is the host engine of the same lane, and open is FromCall or a test's
// replacement.
func New(programs *host.Engine, run *runner.Group, rank int, pool *Pool, open func(runner.Call, coll.Op) (Access, error)) *Engine {
	return &Engine{Engine: programs, run: run, rank: rank, pool: pool, open: open, streams: map[place]streams{}, p2p: map[origin]streams{}}
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
	l := layoutOf(call.In(), call.Out(), op.Writes(e.rank))
	l.cut(op, p.Program.Chunk())
	memory, err := e.pool.acquire(b, op.Device.Type, l.bytes)
	if err != nil {
		return e.errorOf(op, err)
	}
	defer e.pool.release(op.Device.Type, memory)
	e.issuing.Lock()
	defer e.issuing.Unlock()
	if err = e.enqueue(b, memory, &l, place{op.Device, b.Name()}); err != nil {
		err = e.errorOf(op, err)
	} else {
		err = e.run.SubmitAtGate(call, op.Bytes(), p.Program, !p.Kept, runner.Gate{Words: memory.words, Inputs: l.units,
			In: l.pinned(memory, l.in), Out: l.pinned(memory, l.out)})
	}
	if err != nil { // a stream may wait for this operation
		memory.words.Open()
	}
	return err
}

func (e *Engine) errorOf(op coll.Op, err error) error {
	return fmt.Errorf("sagecomm: %s: rank %d: buffers on %v: %w", op.Name(), e.rank, op.Device, err)
}

// enqueue queues the commands of an operation. The stream of the copies back needs no order of its own behind the caller's
// stream: the copies come when *End.Ready is written, which is behind what the caller's stream held.
// Requires: issuing.
func (e *Engine) enqueue(b Access, memory *block, l *layout, on place) error {
	s, known := e.streams[on]
	if !known {
		var err error
		if s, err = e.pool.takeStreams(b, on); err != nil {
			return err
		}
		e.streams[on] = s
	}
	memory.inputs, memory.outputs = l.units, 1
	if err := b.Fork(s.in); err != nil {
		return err
	}
	for unit := uint32(0); unit < l.units; unit = min(unit+l.stride, l.units) {
		last := min(unit+l.stride, l.units)
		for _, c := range l.copiesIn(memory, unit, last) {
			if err := b.CopyIn(s.in, c); err != nil {
				return err
			}
		}
		if err := b.WriteValue(s.in, memory.words.InputReady(), last); err != nil {
			return err
		}
	}
	return b.Finish(s.out, device.End{Copies: l.copiesBack(memory), Ready: memory.words.InputReady(), ReadyValue: memory.inputs,
		Done: memory.words.OutputDone(), DoneValue: runner.GateComplete, Taken: memory.words.OutputTaken(), TakenValue: memory.outputs})
}

// Close implements engine.Engine.
func (e *Engine) Close() {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	for on, s := range e.streams {
		e.pool.giveStreams(on, s)
	}
	clear(e.streams)
	e.closeP2P()
}

// piece is a segment of a buffer: its place on the device and in pinned memory.
type piece struct {
	device uintptr
	offset uint64 // in the block
	bytes  uint64
}

// layout says where the buffers of an operation lie in pinned memory, and in which units the input comes there.
type layout struct {
	in, out []piece
	bytes   uint64 // of pinned memory
	writes  bool   // the operation writes the output
	units   uint32 // of the input; at least 1, so that a run begins when the stream has reached the operation
	chunk   uint64 // bytes of a unit; 0: the whole input
	stride  uint32 // units for which a flag is written
}

// layoutOf places the buffers. A segment of the input that lies within a segment of the output has its place there, so that an
// operation that is in place on the device is in place in pinned memory.
func layoutOf(in, out []runner.Segment, writes bool) layout {
	l := layout{writes: writes, units: 1, stride: 1}
	place := func(s runner.Segment) piece {
		p := piece{s.Data, l.bytes, s.Bytes}
		l.bytes += (s.Bytes + 63) &^ 63
		return p
	}
	for _, s := range out {
		l.out = append(l.out, place(s))
	}
	for _, s := range in {
		p, inside := l.within(s)
		if !inside {
			p = place(s)
		}
		l.in = append(l.in, p)
	}
	return l
}

func (l *layout) within(s runner.Segment) (piece, bool) {
	for _, o := range l.out {
		at := uint64(s.Data - o.device)
		if s.Bytes > 0 && s.Data >= o.device && at <= o.bytes && s.Bytes <= o.bytes-at {
			return piece{s.Data, o.offset + at, s.Bytes}, true
		}
	}
	return piece{}, false
}

// cut cuts the input into units of a chunk of the program where these are ranges of the input.
func (l *layout) cut(op coll.Op, chunk uint64) {
	whole := op.Kind == coll.AllReduce || op.Kind == coll.Reduce || op.Kind == coll.Broadcast
	if !whole || len(l.in) == 0 || op.Bytes() <= chunk {
		return
	}
	units := (op.Bytes() + chunk - 1) / chunk
	if units > device.MaxValue {
		return // the run begins when all of the input is there
	}
	l.chunk, l.units = chunk, uint32(units)
	l.stride = (l.units + maxFlags - 1) / maxFlags
}

// copiesIn returns the copies of units [from, to) of the input.
func (l *layout) copiesIn(memory *block, from, to uint32) (list []device.Copy) {
	begin, end := uint64(from)*l.chunk, uint64(to)*l.chunk
	if l.chunk == 0 {
		end = 1 << 62
	}
	var at uint64
	for _, p := range l.in {
		first, last := max(begin, at), min(end, at+p.bytes)
		if first < last {
			list = append(list, device.Copy{Host: memory.data(p.offset + first - at), Device: p.device + uintptr(first-at), Bytes: last - first})
		}
		at += p.bytes
	}
	return list
}

// copiesBack returns the copies of the output.
func (l *layout) copiesBack(memory *block) (list []device.Copy) {
	if !l.writes {
		return nil
	}
	for _, p := range l.out {
		if p.bytes > 0 {
			list = append(list, device.Copy{Host: memory.data(p.offset), Device: p.device, Bytes: p.bytes})
		}
	}
	return list
}

// pinned returns the segments of a buffer in pinned memory.
func (l *layout) pinned(memory *block, list []piece) []runner.Segment {
	out := make([]runner.Segment, len(list))
	for i, p := range list {
		out[i] = runner.Segment{Data: uintptr(memory.data(p.offset)), Bytes: p.bytes}
	}
	return out
}
