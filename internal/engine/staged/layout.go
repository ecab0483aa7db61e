package staged

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// An operation that is long goes through windows in pinned memory, group by group. A group takes some commands in each stream,
// of which a stream has room for about a thousand and each costs the issuing thread a few microseconds: that bounds how many
// groups there are. A device copies a group of groupBytes in some tens of microseconds.
const (
	maxGroups  = 64 // of a buffer that is one block
	fewGroups  = 16 // where streams cannot wait, and all copies back come at the end
	ordering   = 3  // commands of a group in a stream that are not copies
	groupBytes = 512 << 10
	inWindow   = 3       // groups: one is copied, one is in the hands of the program, one is done
	mostWhole  = 8 << 20 // an operation with more bytes in pinned memory goes through windows
)

// piece is a segment of a buffer: its place on the device and in pinned memory.
type piece struct {
	device uintptr
	offset uint64 // in the block; not used where the buffer goes through a window
	bytes  uint64
}

// side is the input or the output of an operation. Unit k of it is chunk k of each of its blocks.
type side struct {
	pieces []piece
	blocks uint64 // equally long ones: as many as the group has ranks where each rank has one, else 1
	moved  bool   // the device moves it; else it is memory that the operation does not write
	units  uint32 // at least 1: a run begins, and a block is used again, when the streams have come past the operation
	at     uint64 // where the windows begin in pinned memory, one after the other for each block
	window uint64 // bytes of a window; 0: there is room for all pieces
}

// layout says where the buffers of an operation lie in pinned memory, and in which units they come there and go.
type layout struct {
	in, out side
	bytes   uint64 // of pinned memory
	chunk   uint64 // bytes of a unit in each block; 0: a side is one unit
	stride  uint32 // units of a group
	window  uint32 // units for which there is room; 0: for all
	sends   bool   // a send where streams can wait: nobody waits for more than the input, so no stream waits for the run
}

// layoutOf places the buffers. A segment of the input that lies within a segment of the output has its place there, so that an
// operation that is in place on the device is in place in pinned memory.
func layoutOf(in, out []runner.Segment, writes bool) layout {
	l := layout{stride: 1, in: side{moved: true, units: 1, blocks: 1}, out: side{moved: writes, units: 1, blocks: 1}}
	place := func(s runner.Segment) piece {
		p := piece{s.Data, l.bytes, s.Bytes}
		l.bytes += (s.Bytes + 63) &^ 63
		return p
	}
	for _, s := range out {
		l.out.pieces = append(l.out.pieces, place(s))
	}
	for _, s := range in {
		p, inside := l.within(s)
		if !inside {
			p = place(s)
		}
		l.in.pieces = append(l.in.pieces, p)
	}
	return l
}

func (l *layout) within(s runner.Segment) (piece, bool) {
	for _, o := range l.out.pieces {
		at := uint64(s.Data - o.device)
		if s.Bytes > 0 && s.Data >= o.device && at <= o.bytes && s.Bytes <= o.bytes-at {
			return piece{s.Data, o.offset + at, s.Bytes}, true
		}
	}
	return piece{}, false
}

// cut cuts the buffers into units of a chunk of the program where these are ranges of both, and where streams can wait, it makes
// long operations go through windows. Of the other kinds, blocks have lengths of their own, or a rank has only one of the sides.
func (l *layout) cut(op coll.Op, size int, program runner.Compiled, waits bool) {
	switch op.Kind {
	case coll.AllReduce, coll.Reduce, coll.Broadcast:
	case coll.AllGather:
		l.out.blocks = uint64(size)
	case coll.ReduceScatter:
		l.in.blocks = uint64(size)
	default:
		return
	}
	chunk, blocks := program.Chunk(), max(l.in.blocks, l.out.blocks)
	if op.Uneven() || op.Bytes() <= chunk {
		return
	}
	units := (op.Bytes() + chunk - 1) / chunk
	groups, most := uint64(maxGroups), uint64(runner.GateComplete-1)
	if !waits {
		groups, most = fewGroups, device.MaxValue
	}
	groups = groups * (1 + ordering) / (blocks + ordering) // as many commands as for one block
	if units > most || groups < 2 {
		return // the run begins when all of the input is there
	}
	l.chunk = chunk
	l.stride = uint32(max((units+groups-1)/groups, (groupBytes+blocks*chunk-1)/(blocks*chunk)))
	if len(l.in.pieces) > 0 {
		l.in.units = uint32(units)
	}
	// Without waits the copies back are one unit: they come when the run is complete.
	if l.out.moved && waits {
		l.out.units = uint32(units)
	}
	if waits && l.bytes > mostWhole {
		l.open(program.Lag())
	}
}

// open makes the buffers go through windows. A group comes into the window of the input when the group before the last one has
// left it, and the run may enter the units of a group when the output of that one was taken. Units leave the program lag units
// after they have entered it, so a window has room for a group and lag units more.
func (l *layout) open(lag uint32) {
	window := l.stride * max(inWindow, 1+(lag+l.stride-1)/l.stride)
	bytes := uint64(window) * l.chunk
	if (l.in.blocks+l.out.blocks)*bytes >= l.bytes {
		return
	}
	l.window, l.bytes = window, 0
	for _, s := range []*side{&l.in, &l.out} {
		if s.window = bytes; s.moved && len(s.pieces) > 0 {
			s.at = l.bytes
			l.bytes += s.blocks * bytes
		}
	}
}

// length returns the bytes of a side.
func (s *side) length() (n uint64) {
	for _, p := range s.pieces {
		n += p.bytes
	}
	return n
}

// waited returns how many units of the output a run may wait for.
func (s *side) waited() uint32 {
	if !s.moved {
		return 0
	}
	return s.units
}

// copied reports whether the device copies anything of a side.
func (s *side) copied() bool { return s.moved && s.length() > 0 }

// groups calls do for each group of at most stride units, in order. It stops at an error.
func (s *side) groups(stride uint32, do func(from, to uint32) error) error {
	for from := uint32(0); from < s.units; {
		to := min(s.units-from, stride) + from
		if err := do(from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// copies returns the copies of units [from, to) between the device and pinned memory. chunk is that of the layout. The units lie
// in one part of a window.
func (s *side) copies(memory *block, chunk uint64, from, to uint32) (list []device.Copy) {
	if !s.moved {
		return nil
	}
	blocks, length := s.blocks, s.length()/s.blocks
	begin, end := min(uint64(from)*chunk, length), min(uint64(to)*chunk, length)
	if s.units == 1 {
		blocks, begin, end = 1, 0, s.length()
	}
	for b := range blocks {
		base, at := b*length, uint64(0)
		for _, p := range s.pieces {
			first, last := max(base+begin, at), min(base+end, at+p.bytes)
			if first < last {
				offset := p.offset + first - at
				if s.window != 0 {
					offset = s.at + b*s.window + (first-base)%s.window
				}
				list = append(list, device.Copy{Host: memory.data(offset), Device: p.device + uintptr(first-at), Bytes: last - first})
			}
			at += p.bytes
		}
	}
	return list
}

// pinned returns the segments of a side in pinned memory. Those of a block that goes through a window are the window, again and
// again.
func (s *side) pinned(memory *block) (list []runner.Segment) {
	if s.window == 0 {
		for _, p := range s.pieces {
			list = append(list, runner.Segment{Data: uintptr(memory.data(p.offset)), Bytes: p.bytes})
		}
		return list
	}
	for b := range s.blocks {
		for left := s.length() / s.blocks; left > 0; left -= min(left, s.window) {
			list = append(list, runner.Segment{Data: uintptr(memory.data(s.at + b*s.window)), Bytes: min(left, s.window)})
		}
	}
	return list
}
