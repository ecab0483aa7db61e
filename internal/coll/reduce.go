package coll

import "fmt"

// ReduceOp is a reduction, sagecomm_reduce_op in C.
type ReduceOp uint8

const (
	Sum ReduceOp = iota
	Avg
	Product
	Min
	Max
	BAnd
	BOr
	BXor
	PremulSum // every rank's input is multiplied by [Op.Factor] first
	// ReduceOpCount is the number of reductions.
	ReduceOpCount
)

var reduceNames = [ReduceOpCount]string{"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"}

// String returns torch's name of the reduction.
func (op ReduceOp) String() string {
	if op.Valid() {
		return reduceNames[op]
	}
	return fmt.Sprintf("reduction %d", uint8(op))
}

// Valid reports whether op is one of the constants above.
func (op ReduceOp) Valid() bool { return op < ReduceOpCount }

// defined has 16 bits for a class: this overflows, and so does not compile, with a seventeenth reduction.
const _ uint16 = 1 << (ReduceOpCount - 1)

func set(ops ...ReduceOp) (bits uint16) {
	for _, op := range ops {
		bits |= 1 << op
	}
	return bits
}

// defined holds one bit for each reduction of a class. Booleans have the order false < true; SUM is then "any" and
// PRODUCT "all", as torch's own backends have them.
// Complex numbers have no order and no bits; an 8-bit float has no agreed rounding.
var defined = [...]uint16{
	integer:       set(Sum, Avg, Product, Min, Max, BAnd, BOr, BXor),
	boolean:       set(Sum, Product, Min, Max, BAnd, BOr, BXor),
	float:         set(Sum, Avg, Product, Min, Max, PremulSum),
	complexNumber: set(Sum, Avg, Product, PremulSum),
	opaque:        0,
}

// Defined returns nil if elements of type t can be reduced with op, and otherwise an error like "AVG is not defined for bool".
// [Op.Check] puts the operation's name before it.
func Defined(op ReduceOp, t DataType) error {
	switch {
	case !op.Valid() || !t.Valid():
		return fmt.Errorf("%v of %v is not known to this version", op, t)
	case defined[dataTypes[t].class]&(1<<op) == 0:
		return fmt.Errorf("%v is not defined for %v", op, t)
	}
	return nil
}
