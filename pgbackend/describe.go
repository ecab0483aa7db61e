package pgbackend

import (
	"fmt"
	"strings"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// announced describes a call of a rank's, which may have blocks of other lengths than another one's.
func announced(a runner.Announced) string {
	text := describe(a.Op, 0)
	if a.Uneven {
		text += " with blocks of different lengths"
	}
	return text
}

// describe writes a call as a user would: "all_reduce #7 (float32, SUM, 1000 elements)".
func describe(op coll.Op, sequence uint64) string {
	if op.OfSparse() {
		return describeSparse(op, sequence)
	}
	var parts []string
	if op.Kind != coll.Barrier {
		parts = append(parts, op.Type.String())
	}
	if op.Kind.Reduces() {
		parts = append(parts, op.Reduce.String())
	}
	if op.Parts > 1 {
		parts = append(parts, manyParts(op.Parts))
	}
	switch {
	case op.Kind == coll.Barrier, op.Kind == coll.AllToAll:
	case op.Type.Size() > 0:
		parts = append(parts, fmt.Sprintf("%d elements", op.Bytes()/uint64(op.Type.Size())))
	default:
		parts = append(parts, fmt.Sprintf("%d bytes", op.Bytes()))
	}
	switch {
	case op.Kind.Rooted():
		parts = append(parts, fmt.Sprintf("root %d", op.Root))
	case op.Kind == coll.Send:
		parts = append(parts, fmt.Sprintf("to rank %d, tag %d", op.Root, op.Tag))
	case op.Kind == coll.Recv && op.Root == coll.AnySource:
		parts = append(parts, fmt.Sprintf("from any rank, tag %d", op.Tag))
	case op.Kind == coll.Recv:
		parts = append(parts, fmt.Sprintf("from rank %d, tag %d", op.Root, op.Tag))
	}
	text := numbered(op, sequence)
	if len(parts) == 0 {
		return text
	}
	return text + " (" + strings.Join(parts, ", ") + ")"
}

// describeSparse writes a part of an all_reduce of sparse tensors: "all_reduce #7 of a sparse tensor".
func describeSparse(op coll.Op, sequence uint64) string {
	text := numbered(op, sequence) + " of a sparse tensor"
	switch op.Kind {
	case coll.Send:
		text += fmt.Sprintf(" (to rank %d)", op.Root)
	case coll.Recv:
		text += fmt.Sprintf(" (from rank %d)", op.Root)
	}
	return text
}

func numbered(op coll.Op, sequence uint64) string {
	if sequence == 0 {
		return op.Name()
	}
	return fmt.Sprintf("%s #%d", op.Name(), sequence)
}

// manyParts says how many operations were packed together, of which a peer's record counts so many at most.
func manyParts(n int) string {
	if n >= runner.ManyParts {
		return fmt.Sprintf("%d or more fused", runner.ManyParts)
	}
	return fmt.Sprintf("%d fused", n)
}
