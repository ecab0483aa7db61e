package coll

import (
	"fmt"
	"strings"
)

// ManyParts bounds the number of parts that a rank announces for an operation: more parts are announced as ManyParts.
const ManyParts = 127

// Describe describes the operation to a user: "all_reduce #7 (float32, SUM, 1000 elements)". If the sequence number is 0, the
// "#7" is left out.
func (op Op) Describe(sequence uint64) string {
	if op.OfSparse() {
		return op.describeSparse(sequence)
	}
	var details []string
	if op.Kind != Barrier {
		details = append(details, op.Type.String())
	}
	if op.Kind.Reduces() {
		details = append(details, op.Reduce.String())
	}
	switch {
	case op.Parts >= ManyParts:
		details = append(details, fmt.Sprintf("batch of %d or more", ManyParts))
	case op.Parts > 1:
		details = append(details, fmt.Sprintf("batch of %d", op.Parts))
	}
	switch {
	case op.Bucket:
		details = append(details, "in an open bucket")
	case op.Kind == Barrier, op.Kind == AllToAll:
	case op.Type.Size() > 0:
		details = append(details, fmt.Sprintf("%d elements", op.Bytes()/uint64(op.Type.Size())))
	default:
		details = append(details, fmt.Sprintf("%d bytes", op.Bytes()))
	}
	switch {
	case op.Kind.Rooted():
		details = append(details, fmt.Sprintf("root %d", op.Root))
	case op.Kind == Send:
		details = append(details, fmt.Sprintf("to rank %d, tag %d", op.Root, op.Tag))
	case op.Kind == Recv && op.Root == AnySource:
		details = append(details, fmt.Sprintf("from any rank, tag %d", op.Tag))
	case op.Kind == Recv:
		details = append(details, fmt.Sprintf("from rank %d, tag %d", op.Root, op.Tag))
	}
	text := op.numbered(sequence)
	if len(details) == 0 {
		return text
	}
	return text + " (" + strings.Join(details, ", ") + ")"
}

// describeSparse describes a part of an all_reduce of sparse tensors: "all_reduce #7 of a sparse tensor".
func (op Op) describeSparse(sequence uint64) string {
	text := op.numbered(sequence) + " of a sparse tensor"
	switch op.Kind {
	case Send:
		text += fmt.Sprintf(" (to rank %d)", op.Root)
	case Recv:
		text += fmt.Sprintf(" (from rank %d)", op.Root)
	}
	return text
}

func (op Op) numbered(sequence uint64) string {
	if sequence == 0 {
		return op.Name()
	}
	return fmt.Sprintf("%s #%d", op.Name(), sequence)
}
