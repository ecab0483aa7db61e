package coll

import "fmt"

// DataType is the type of a tensor's elements: sagecomm_dtype.
type DataType uint8

const (
	Int8 DataType = iota
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Bool
	Float16
	BFloat16
	Float32
	Float64
	Complex64
	Complex128
	// The 8-bit floats are moved, but never reduced.
	Float8E4M3FN
	Float8E5M2
	Float8E4M3FNUZ
	Float8E5M2FNUZ
	Float8E8M0FNU
	// Sparse is 8 bytes of the description of a rank's sparse tensor. An all_reduce of sparse tensors begins with an [AllGather]
	// of this type; the elements travel in p2p operations.
	Sparse
	// DataTypeCount is the number of element types.
	DataTypeCount
)

// class determines which reductions are defined for a type.
type class uint8

const (
	integer class = iota
	boolean
	float
	complexNumber
	opaque
)

var dataTypes = [DataTypeCount]struct {
	name  string
	size  int
	class class
}{
	Int8:           {"int8", 1, integer},
	Int16:          {"int16", 2, integer},
	Int32:          {"int32", 4, integer},
	Int64:          {"int64", 8, integer},
	Uint8:          {"uint8", 1, integer},
	Uint16:         {"uint16", 2, integer},
	Uint32:         {"uint32", 4, integer},
	Uint64:         {"uint64", 8, integer},
	Bool:           {"bool", 1, boolean},
	Float16:        {"float16", 2, float},
	BFloat16:       {"bfloat16", 2, float},
	Float32:        {"float32", 4, float},
	Float64:        {"float64", 8, float},
	Complex64:      {"complex64", 8, complexNumber},
	Complex128:     {"complex128", 16, complexNumber},
	Float8E4M3FN:   {"float8_e4m3fn", 1, opaque},
	Float8E5M2:     {"float8_e5m2", 1, opaque},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1, opaque},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", 1, opaque},
	Float8E8M0FNU:  {"float8_e8m0fnu", 1, opaque},
	Sparse:         {"sparse", 8, opaque},
}

// String returns torch's name of the type without "torch.".
func (t DataType) String() string {
	if t.Valid() {
		return dataTypes[t].name
	}
	return fmt.Sprintf("dtype %d", uint8(t))
}

// Valid reports whether t is one of the constants above.
func (t DataType) Valid() bool { return t < DataTypeCount }

// Size returns the bytes of one element, a power of two of at most 16, or 0 for a type that is not [DataType.Valid].
func (t DataType) Size() int {
	if t.Valid() {
		return dataTypes[t].size
	}
	return 0
}
