package device

import "sagecomm/internal/coll"

// Piece is a part of a buffer of an operation, in memory of the device.
type Piece struct {
	At    uintptr
	Bytes uint64
}

// Scaler is a Launcher in streams of a framework whose own kernels multiply and divide elements of the operation's buffers: float16,
// bfloat16, float32 or float64.
type Scaler interface {
	Launcher

	// Scales reports whether the framework of this operation's caller has such kernels. If not, the other methods are not called.
	Scales() bool

	// Multiply queues the products of elements and a factor, and returns where they will be, one piece behind the other: memory of the
	// framework, for what is queued in the stream while the operation is being issued. A framework that keeps the buffers of a failed
	// operation keeps this memory, too.
	Multiply(s Stream, t coll.DataType, pieces []Piece, factor float64) (uintptr, error)

	// Divide queues the division of elements, in place.
	Divide(s Stream, t coll.DataType, pieces []Piece, divisor float64) error
}
