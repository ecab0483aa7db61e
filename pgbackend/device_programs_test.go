package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"sagecomm/internal/coll"
)

// Tests run random programs through a vendor's library, which carries out sums, and the staged engine, which carries
// out the rest of the same lane. Operations read what earlier ones write, and write what earlier ones read, and nobody
// waits in between.

const (
	programBuffers = 4
	programBytes   = 512 << 10 // of a buffer
)

// span is a part of a buffer, in elements of 4 bytes.
type span struct{ from, to int }

// region is an operand: parts of one buffer. All ranks have the same.
type region struct {
	buffer int
	spans  []span
}

func (v region) of(buffers [][]byte) (list [][]byte) {
	for _, s := range v.spans {
		list = append(list, buffers[v.buffer][4*s.from:4*s.to])
	}
	return list
}

func (v region) read(buffers [][]byte) []byte { return bytes.Join(v.of(buffers), nil) }

func (v region) write(buffers [][]byte, data []byte) {
	for _, part := range v.of(buffers) {
		data = data[copy(part, data):]
	}
}

// programStep is one step of a program: an operation, or what the caller's streams do.
type programStep struct {
	op      coll.Op
	in, out region
	fills   [][]byte // by rank: the caller writes this to out; nil: no rank does
	reads   bool     // the caller reads in
}

// newProgram makes a program of ranks.
func newProgram(random *rand.Rand, size, steps int) (list []programStep) {
	pick := func(n int) region {
		v := region{buffer: random.IntN(programBuffers)}
		at := random.IntN(100)
		for parts := 1 + random.IntN(4); n > 0; parts-- {
			length := n
			if parts > 1 {
				length = 1 + random.IntN(n)
			}
			v.spans = append(v.spans, span{at, at + length})
			at, n = at+length+random.IntN(3), n-length
		}
		return v
	}
	other := func(than region, n int) region {
		for {
			if v := pick(n); v.buffer != than.buffer {
				return v
			}
		}
	}
	for range steps {
		n := []int{1, 7, 100, 1000, 5000, 30_000}[random.IntN(6)]
		s := programStep{op: coll.Op{Type: coll.Int32, Root: random.IntN(size), Reduce: []coll.ReduceOp{coll.Sum, coll.Max}[random.IntN(2)]}}
		switch random.IntN(8) {
		case 0, 1:
			s.op.Kind = coll.AllReduce
			s.in = pick(n)
			if s.out = s.in; random.IntN(2) == 0 { // else in place
				s.out = other(s.in, n)
			}
		case 2:
			s.op.Kind = coll.Broadcast
			s.in = pick(n)
			s.out = s.in
		case 3:
			s.op.Kind = coll.Reduce
			s.in = pick(n)
			s.out = other(s.in, n)
		case 4:
			s.op.Kind = coll.AllGather
			s.in = pick(n)
			s.out = other(s.in, size*n)
		case 5:
			s.op.Kind = coll.ReduceScatter
			s.in = pick(size * n)
			s.out = other(s.in, n)
		case 6:
			s.out = pick(n)
			for range size {
				s.fills = append(s.fills, randomBytes(random, 4*n))
			}
		default:
			s.in, s.reads = pick(n), true
		}
		list = append(list, s)
	}
	return list
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// carryOut does what a step does to the buffers of all ranks. It returns what each rank's caller reads.
func (s *programStep) carryOut(all [][][]byte) (read [][]byte) {
	var in [][]byte
	for rank := range all {
		switch {
		case s.fills != nil:
			s.out.write(all[rank], s.fills[rank])
		case len(s.in.spans) > 0:
			in = append(in, s.in.read(all[rank]))
		}
	}
	if s.fills != nil || s.reads {
		return in
	}
	reduced := func() []byte {
		return reduceOf(in, func(a, b int32) int32 {
			if s.op.Reduce == coll.Max {
				return max(a, b)
			}
			return a + b
		})
	}
	for rank := range all {
		switch s.op.Kind {
		case coll.AllReduce:
			s.out.write(all[rank], reduced())
		case coll.Broadcast:
			s.out.write(all[rank], in[s.op.Root])
		case coll.Reduce:
			if rank == s.op.Root {
				s.out.write(all[rank], reduced())
			}
		case coll.AllGather:
			s.out.write(all[rank], bytes.Join(in, nil))
		case coll.ReduceScatter:
			part := len(in[0]) / len(all)
			s.out.write(all[rank], reduced()[rank*part:(rank+1)*part])
		}
	}
	return nil
}

// operands returns the segments of a rank.
func (s *programStep) operands(rank int, buffers [][]byte) (in, out [][]byte) {
	if s.op.Kind != coll.Broadcast || rank == s.op.Root {
		in = s.in.of(buffers)
	}
	if s.op.Kind != coll.Reduce || rank == s.op.Root {
		out = s.out.of(buffers)
	}
	return in, out
}

// callerAwaits makes the caller's stream wait for an operation, as the shim does.
func (d *fakeDevice) callerAwaits(w deviceWork) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, call := range w.calls {
		if call.ended != nil {
			d.queue(callersStream, command{ready: call.ended, run: func() {}})
		}
	}
}

// runProgram runs a program on a rank. It returns its buffers, and what the caller has read, when the device has done
// all.
func runProgram(g *Group, d *fakeDevice, list []programStep, late bool) (buffers, read [][]byte, err error) {
	for range programBuffers {
		b := d.buffer(programBytes)
		clear(b)
		buffers = append(buffers, b)
	}
	type pending struct {
		deviceWork
		uses map[int]bool // buffers
	}
	var works []pending
	behind := func(buffer int) {
		for _, w := range works {
			if w.uses[buffer] {
				d.callerAwaits(w.deviceWork)
			}
		}
	}
	reads := 0
	for _, s := range list {
		if s.reads {
			reads++
		}
	}
	read = make([][]byte, reads)
	reads = 0
	d.hold(late)
	for i, s := range list {
		switch {
		case s.fills != nil:
			behind(s.out.buffer)
			data := s.fills[g.rank]
			d.mu.Lock()
			d.queue(callersStream, command{run: func() { s.out.write(buffers, data) }})
			d.mu.Unlock()
		case s.reads:
			behind(s.in.buffer)
			at := reads
			reads++
			d.mu.Lock()
			d.queue(callersStream, command{run: func() { read[at] = s.in.read(buffers) }})
			d.mu.Unlock()
		default:
			in, out := s.operands(g.rank, buffers)
			w, f := issueOn(g, d, s.op, in, out)
			if f != nil {
				return nil, nil, fmt.Errorf("step %d: %w", i, f)
			}
			works = append(works, pending{w, map[int]bool{s.in.buffer: true, s.out.buffer: true}})
		}
	}
	d.hold(false)
	for i, w := range works {
		if f := w.finish(); f != nil {
			return nil, nil, fmt.Errorf("operation %d: %w", i, f)
		}
	}
	d.drain()
	return buffers, read, nil
}

// order is which of the streams that can go on does so.
type order int

const (
	anyStream   order = iota
	newestFirst       // the library's go before the caller's, which is late
	oldestFirst       // the caller's goes first
)
