package coll

import (
	"fmt"
	"math"
	"time"
)

// AnySource as the root of a recv takes a message from whichever rank has sent one.
const AnySource = -1

// Op describes one call on one rank: sagecomm_op without its pointers. A buffer is the concatenation of its segments,
// so only lengths matter here.
type Op struct {
	Kind    Kind
	Type    DataType
	Reduce  ReduceOp // all_reduce and reduce
	Async   bool     // the caller does not wait for peers
	Root    int      // root of broadcast and reduce, peer of send and recv; a rank of the group, or [AnySource]
	Tag     int      // send and recv
	In      uint64   // bytes of the input
	Out     uint64   // bytes of the output
	Factor  float64  // PREMUL_SUM
	Timeout time.Duration
}

// Bytes is the length that the operation is known by, the same on all ranks of a collective: the tensor of one rank,
// for all_gather the input.
func (op Op) Bytes() uint64 {
	switch op.Kind {
	case Broadcast, Recv:
		return op.Out
	default:
		return op.In
	}
}

// Check returns nil when rank of a group of size ranks may make this call. It looks at this rank's arguments only;
// whether all ranks agree is found out when data flows. The error is the text that the user sees.
func (op Op) Check(rank, size int) error {
	switch {
	case !op.Kind.Valid():
		return fmt.Errorf("sagecomm: %v is not known to this version", op.Kind)
	case size < 1 || rank < 0 || rank >= size:
		return op.refuse("rank %d is outside a group of %d ranks", rank, size)
	case !op.Type.Valid():
		return op.refuse("rank %d: %v is not known to this version", rank, op.Type)
	case op.Timeout < 0:
		return op.refuse("rank %d: timeout %v is negative", rank, op.Timeout)
	}
	if op.Kind.Reduces() {
		if err := Defined(op.Reduce, op.Type); err != nil {
			return op.refuse("%w", err)
		}
	}
	if err := op.checkRoot(rank, size); err != nil {
		return err
	}
	return op.checkBytes(rank, size)
}

func (op Op) checkRoot(rank, size int) error {
	switch op.Kind {
	case Broadcast, Reduce:
		if op.Root < 0 || op.Root >= size {
			return op.refuse("rank %d: root %d is outside the group, expected 0 to %d", rank, op.Root, size-1)
		}
	case Send, Recv:
		if op.Kind == Recv && op.Root == AnySource {
			break
		}
		if op.Root < 0 || op.Root >= size {
			return op.refuse("rank %d: peer %d is outside the group, expected 0 to %d", rank, op.Root, size-1)
		}
	}
	if (op.Kind == Send || op.Kind == Recv) && (op.Tag < 0 || op.Tag > math.MaxInt32) {
		return op.refuse("rank %d: tag %d, expected 0 to %d", rank, op.Tag, math.MaxInt32)
	}
	return nil
}

func (op Op) checkBytes(rank, size int) error {
	width := uint64(op.Type.Size())
	if op.In > math.MaxInt64 || op.Out > math.MaxInt64 {
		return op.refuse("rank %d: a buffer of more than %d bytes", rank, int64(math.MaxInt64))
	}
	if op.In%width != 0 || op.Out%width != 0 {
		return op.refuse("rank %d: input of %d and output of %d bytes are not whole elements of %v (%d bytes each)",
			rank, op.In, op.Out, op.Type, width)
	}
	ok, want := true, ""
	switch op.Kind {
	case AllReduce:
		ok, want = op.In == op.Out, "equal lengths"
	case Broadcast:
		if rank == op.Root {
			ok, want = op.In == op.Out, "equal lengths on the root"
		} else {
			ok, want = op.In == 0 || op.In == op.Out, "no input, or one as long as the output"
		}
	case AllGather:
		// Division, not multiplication: size times a length from outside may wrap.
		ok = op.Out/uint64(size) == op.In && op.Out%uint64(size) == 0
		want = fmt.Sprintf("an output %d times as long as the input", size)
	case Reduce:
		if rank == op.Root {
			ok, want = op.In == op.Out, "equal lengths on the root"
		} else {
			ok, want = op.Out == 0 || op.In == op.Out, "no output, or one as long as the input"
		}
	case Barrier:
		ok, want = op.In == 0 && op.Out == 0, "no buffers"
	case Send:
		ok, want = op.Out == 0, "no output"
	case Recv:
		ok, want = op.In == 0, "no input"
	}
	if !ok {
		return op.refuse("rank %d: input has %d bytes and output %d, expected %s", rank, op.In, op.Out, want)
	}
	return nil
}

func (op Op) refuse(format string, args ...any) error {
	return fmt.Errorf("sagecomm: %v: "+format, append([]any{op.Kind}, args...)...)
}
