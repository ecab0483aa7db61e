package device

import "sagecomm/internal/coll"

// MaxInputs is the largest number of arrays that one Reduction combines.
const MaxInputs = 64

// Reduction combines arrays in memory that a device can use, element by element and in the order of the inputs:
//
//	Output[i] = Inputs[0][i] op Inputs[1][i] op ...
//
// The bits are those of package kernels, signs and payloads of NaN aside. Addresses are aligned to the elements; where all of them
// are aligned to 16 bytes the reduction is faster.
type Reduction struct {
	Type   coll.DataType
	Op     coll.ReduceOp
	Inputs []uintptr // 1 to MaxInputs
	Output uintptr   // may be one of the inputs, and overlaps none of them otherwise
	Count  uint64    // elements
	// Operand is the divisor of an AVG, a whole number from 1 to 2^31-1, and the factor of a PREMUL_SUM, which multiplies each
	// input; the product is rounded to the type. Other reductions ignore it. Ranks have factors of their own, so each one scales
	// its contribution by a PREMUL_SUM of one input, and the contributions are combined by a SUM.
	Operand float64
}

// Reducer is a Runtime whose device reduces arrays in its own memory.
type Reducer interface {
	Runtime

	// LoadKernels makes the device ready for Reduce, which does it at its first call otherwise. It may wait for the device, so it
	// is called before streams wait for the host.
	LoadKernels() error

	// Reduce queues a reduction.
	Reduce(s Stream, r Reduction) error
}
