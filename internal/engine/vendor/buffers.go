package vendor

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// A library takes contiguous buffers. Those of several segments are gathered in memory of the device first, and outputs are spread
// from there. Ranks may have different segments for one operation, so segments do not choose what peers see.

// side is the input or the output of an operation.
type side struct {
	segments []runner.Segment // none is empty
	at       uintptr          // where the library finds it
	copied   bool             // it is not the only segment
}

type sides struct {
	in, out side
	scratch uintptr
}

const alignment = 256

func sideOf(list []runner.Segment) (s side, bytes uint64) {
	for _, one := range list {
		if one.Bytes > 0 {
			s.segments = append(s.segments, one)
			bytes += one.Bytes
		}
	}
	switch len(s.segments) {
	case 0:
		return s, 0
	case 1:
		s.at = s.segments[0].Data
		return s, 0
	}
	s.copied = true
	return s, (bytes + alignment - 1) &^ (alignment - 1)
}

// sidesOf places the buffers of an operation, whose segments are given. take returns memory of the device.
func sidesOf(inputs, outputs []runner.Segment, op coll.Op, rank int, take func(bytes uint64) (uintptr, error)) (s sides, err error) {
	in, inBytes := sideOf(inputs)
	out, outBytes := sideOf(outputs)
	needed := inBytes + outBytes
	if op.Kind == coll.Barrier {
		needed = alignment
	}
	// A reduction to another rank writes no output here, but a library may use the memory of an uneven reduce_scatter.
	if needed > 0 {
		base, err := take(needed)
		if err != nil {
			return s, err
		}
		if in.copied {
			in.at = base
		}
		if out.copied {
			out.at = base + uintptr(inBytes)
		}
		s.scratch = base
	}
	if !op.Writes(rank) {
		out.copied = false
	}
	s.in, s.out = in, out
	return s, nil
}

func (s *sides) buffers() Buffers { return Buffers{s.in.at, s.out.at, s.scratch} }

// gather queues the copies of the input's segments.
func (s *sides) gather(rt device.Launcher, stream device.Stream) error {
	if !s.in.copied {
		return nil
	}
	at := s.in.at
	for _, one := range s.in.segments {
		if err := rt.CopyWithin(stream, at, one.Data, one.Bytes); err != nil {
			return err
		}
		at += uintptr(one.Bytes)
	}
	return nil
}

// spread queues the copies of the output's segments.
func (s *sides) spread(rt device.Launcher, stream device.Stream) error {
	if !s.out.copied {
		return nil
	}
	at := s.out.at
	for _, one := range s.out.segments {
		if err := rt.CopyWithin(stream, one.Data, at, one.Bytes); err != nil {
			return err
		}
		at += uintptr(one.Bytes)
	}
	return nil
}
