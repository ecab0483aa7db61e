package coll

import "fmt"

// Kind is a kind of operation, sagecomm_kind in C.
type Kind uint8

const (
	AllReduce Kind = iota
	Broadcast
	AllGather // the output is a block for each rank, in rank order
	Reduce
	Barrier
	ReduceScatter // the input is a block for each rank, in rank order; rank r gets the reduction of block r
	AllToAll      // input and output are a block for each rank, in rank order
	Gather        // the root's output is a block for each rank, in rank order
	Scatter       // the root's input is a block for each rank, in rank order
	Send
	Recv
	// KindCount is the number of kinds.
	KindCount
)

var kindNames = [KindCount]string{"all_reduce", "broadcast", "all_gather", "reduce", "barrier", "reduce_scatter", "all_to_all",
	"gather", "scatter", "send", "recv"}

// String returns torch's name of the operation.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Valid reports whether k is one of the constants above.
func (k Kind) Valid() bool { return k < KindCount }

// Collective reports whether every rank of the group takes part.
func (k Kind) Collective() bool { return k < Send }

// Rooted reports whether the collective has a root.
func (k Kind) Rooted() bool { return k == Broadcast || k == Reduce || k == Gather || k == Scatter }

// Reduces reports whether the operation combines elements, so that a [ReduceOp] means something.
func (k Kind) Reduces() bool { return k == AllReduce || k == Reduce || k == ReduceScatter }

// ParseKind is the inverse of [Kind.String].
func ParseKind(s string) (Kind, bool) {
	for k, name := range kindNames {
		if s == name {
			return Kind(k), true
		}
	}
	return 0, false
}
