package coll

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// AnySource as the root of a recv accepts a message from any rank.
const AnySource = -1

// Op describes one call on one rank. It is sagecomm_op without its pointers. A buffer is the concatenation of its segments,
// so only lengths matter here.
type Op struct {
	Kind   Kind
	Type   DataType
	Reduce ReduceOp // for the kinds that reduce
	Async  bool     // the caller does not wait for peers
	Paired bool     // of a p2p operation of a rank with itself: its other side is in the same call
	Root   int      // root of rooted kinds, peer of send and recv; a rank of the group, or [AnySource]
	Tag    int      // send and recv
	In     uint64   // bytes of the input
	Out    uint64   // bytes of the output
	// InBlocks (reduce_scatter, all_to_all) and OutBlocks (all_gather, all_to_all) are the bytes of each rank's block;
	// nil: blocks are equal.
	InBlocks, OutBlocks []uint64
	Factor              float64 // PREMUL_SUM
	Timeout             time.Duration
	Device              Device   // where the buffers lie
	Stream              uintptr  // of a device: the caller's stream
	Ordering            Ordering // of a device
	Stack               uint64   // number of the caller's call stack, for records; 0: not known
	Bucket              bool     // stands for the all_reduces of a bucket that is not closed yet, in errors
	Parts               int      // number of operations of a coalesced call that are packed into this one; 0: it is a single operation
}

// OfSparse reports whether the call is part of an all_reduce of sparse tensors: its all_gather, or one of its p2p operations, which
// have negative tags.
func (op Op) OfSparse() bool { return op.Type == Sparse || !op.Kind.Collective() && op.Tag < 0 }

// Name returns the name of the operation that the user called.
func (op Op) Name() string {
	if op.OfSparse() {
		return AllReduce.String()
	}
	return op.Kind.String()
}

// Uneven reports whether blocks differ in length.
func (op Op) Uneven() bool {
	for _, blocks := range [][]uint64{op.InBlocks, op.OutBlocks} {
		for _, n := range blocks {
			if n != blocks[0] {
				return true
			}
		}
	}
	return false
}

// Bytes returns the length by which the operation is identified: the bytes of one rank's tensor, or of the longest block. It is the
// same on all ranks of a collective. For an all_to_all it is 0, because its ranks have no length in common.
func (op Op) Bytes() uint64 {
	switch op.Kind {
	case Broadcast, Recv, Scatter:
		return op.Out
	case AllToAll:
		return 0
	case ReduceScatter:
		if op.InBlocks != nil {
			return slices.Max(op.InBlocks)
		}
		return op.Out
	case AllGather:
		if op.OutBlocks != nil {
			return slices.Max(op.OutBlocks)
		}
		return op.In
	default:
		return op.In
	}
}

// Writes reports whether the operation writes the output of a rank.
func (op Op) Writes(rank int) bool {
	return op.Kind != Barrier && op.Kind != Send && (op.Kind != Reduce && op.Kind != Gather || rank == op.Root)
}

// Check returns nil if a rank of a group of size ranks may make this call. It checks the arguments of this rank; whether all ranks
// agree is checked when the operation runs. The text of the error is what the user sees.
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
	case op.Device.Type >= DeviceTypeCount:
		return op.refuse("rank %d: device type %d, expected 0 to %d", rank, op.Device.Type, DeviceTypeCount-1)
	case !op.Device.IsHost() && op.Device.Index < 0:
		return op.refuse("rank %d: device index %d is negative", rank, op.Device.Index)
	case !op.Device.IsHost() && op.Ordering >= OrderingCount:
		return op.refuse("rank %d: ordering %d, expected 0 to %d", rank, op.Ordering, OrderingCount-1)
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
	case Broadcast, Reduce, Gather, Scatter:
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
	if err := op.checkBlocks(rank, size); err != nil {
		return err
	}
	// The lengths are compared by division, because size times a length from outside may overflow.
	blocksOf := func(all, one uint64) bool { return all/uint64(size) == one && all%uint64(size) == 0 }
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
		if op.OutBlocks != nil {
			ok, want = op.In == op.OutBlocks[rank], "an input as long as this rank's block"
		} else {
			ok, want = blocksOf(op.Out, op.In), fmt.Sprintf("an output %d times as long as the input", size)
		}
	case ReduceScatter:
		if op.InBlocks != nil {
			ok, want = op.Out == op.InBlocks[rank], "an output as long as this rank's block"
		} else {
			ok, want = blocksOf(op.In, op.Out), fmt.Sprintf("an input %d times as long as the output", size)
		}
	case AllToAll:
		ok = op.InBlocks != nil || op.In%uint64(size) == 0
		ok = ok && (op.OutBlocks != nil || op.Out%uint64(size) == 0)
		want = fmt.Sprintf("%d equal blocks, or the lengths of the blocks", size)
		if in, out := own(op.InBlocks, op.In, rank, size), own(op.OutBlocks, op.Out, rank, size); ok && in != out {
			return op.refuse("rank %d: its input block for itself has %d bytes, its output block from itself %d", rank, in, out)
		}
	case Gather:
		if rank == op.Root {
			ok, want = blocksOf(op.Out, op.In), fmt.Sprintf("an output %d times as long as the input on the root", size)
		} else {
			ok, want = op.Out == 0, "no output on a rank that is not the root"
		}
	case Scatter:
		if rank == op.Root {
			ok, want = blocksOf(op.In, op.Out), fmt.Sprintf("an input %d times as long as the output on the root", size)
		} else {
			ok, want = op.In == 0, "no input on a rank that is not the root"
		}
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

// own returns the length of this rank's block.
func own(blocks []uint64, all uint64, rank, size int) uint64 {
	if blocks != nil {
		return blocks[rank]
	}
	return all / uint64(size)
}

func (op Op) checkBlocks(rank, size int) error {
	for _, list := range []struct {
		name   string
		blocks []uint64
		all    uint64
		ok     bool
	}{
		{"input", op.InBlocks, op.In, op.Kind == ReduceScatter || op.Kind == AllToAll},
		{"output", op.OutBlocks, op.Out, op.Kind == AllGather || op.Kind == AllToAll},
	} {
		switch {
		case list.blocks == nil:
			continue
		case !list.ok:
			return op.refuse("rank %d: blocks of the %s cannot differ in length", rank, list.name)
		case len(list.blocks) != size:
			return op.refuse("rank %d: %d blocks of the %s, the group has %d ranks", rank, len(list.blocks), list.name, size)
		}
		left := list.all
		for i, n := range list.blocks {
			if n > left {
				return op.refuse("rank %d: the %s of %d bytes ends within block %d", rank, list.name, list.all, i)
			}
			if n%uint64(op.Type.Size()) != 0 {
				return op.refuse("rank %d: block %d of the %s, %d bytes, is not whole elements of %v", rank, i, list.name, n, op.Type)
			}
			left -= n
		}
		if left != 0 {
			return op.refuse("rank %d: the %s has %d bytes beyond its last block", rank, list.name, left)
		}
	}
	return nil
}

func (op Op) refuse(format string, args ...any) error {
	return fmt.Errorf("sagecomm: %v: "+format, append([]any{op.Kind}, args...)...)
}
