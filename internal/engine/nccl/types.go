package nccl

import (
	"encoding/binary"
	"math"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine/vendor"
)

// Numbers of types and reductions: those of nccl.h.
const (
	typeInt8 int32 = iota
	typeUint8
	typeInt32
	typeUint32
	typeInt64
	typeUint64
	typeFloat16
	typeFloat32
	typeFloat64
	typeBFloat16
)

const (
	opSum int32 = iota
	opProd
	opMax
	opMin
	opAvg
)

// elements are the types that NCCL has. It moves the others as bytes.
var elements = map[coll.DataType]vendor.Element{
	coll.Int8: {Type: typeInt8, Bytes: 1}, coll.Uint8: {Type: typeUint8, Bytes: 1},
	coll.Int32: {Type: typeInt32, Bytes: 4}, coll.Uint32: {Type: typeUint32, Bytes: 4},
	coll.Int64: {Type: typeInt64, Bytes: 8}, coll.Uint64: {Type: typeUint64, Bytes: 8},
	coll.Float16: {Type: typeFloat16, Bytes: 2}, coll.BFloat16: {Type: typeBFloat16, Bytes: 2},
	coll.Float32: {Type: typeFloat32, Bytes: 4}, coll.Float64: {Type: typeFloat64, Bytes: 8},
}

// Element implements vendor.Library.
func (Library) Element(t coll.DataType) vendor.Element {
	if e, ok := elements[t]; ok {
		return e
	}
	return vendor.Element{Type: typeUint8, Bytes: 1}
}

var reductions = map[coll.ReduceOp]int32{coll.Sum: opSum, coll.Product: opProd, coll.Min: opMin, coll.Max: opMax, coll.Avg: opAvg,
	coll.PremulSum: opSum}

// ofBool are the reductions of booleans, which are bytes of 0 and 1.
var ofBool = map[coll.ReduceOp]int32{coll.Sum: opMax, coll.Max: opMax, coll.BOr: opMax, coll.Product: opMin, coll.Min: opMin,
	coll.BAnd: opMin}

// Reduction implements vendor.Library. A complex number is two floats, except in a product. NCCL has no reductions of bits, none of
// 16-bit integers, and none that gives the parity of booleans.
func (Library) Reduction(op coll.ReduceOp, t coll.DataType) (r vendor.Reduction, ok bool) {
	switch t {
	case coll.Bool:
		r.Element = vendor.Element{Type: typeUint8, Bytes: 1}
		r.Op, ok = ofBool[op]
		return r, ok
	case coll.Complex64, coll.Complex128:
		if op == coll.Product {
			return r, false
		}
		t = map[coll.DataType]coll.DataType{coll.Complex64: coll.Float32, coll.Complex128: coll.Float64}[t]
	}
	element, has := elements[t]
	r.Element, r.Factor = element, op == coll.PremulSum
	r.Op, ok = reductions[op]
	return r, ok && has
}

// scalar returns a number in the form of a type, which is one of floats.
func scalar(t int32, x float64) (bytes [8]byte) {
	switch t {
	case typeFloat64:
		binary.NativeEndian.PutUint64(bytes[:], math.Float64bits(x))
	case typeFloat32:
		binary.NativeEndian.PutUint32(bytes[:], math.Float32bits(float32(x)))
	case typeBFloat16:
		bits := math.Float32bits(float32(x))
		binary.NativeEndian.PutUint16(bytes[:], uint16((bits+0x7fff+bits>>16&1)>>16))
	case typeFloat16:
		binary.NativeEndian.PutUint16(bytes[:], half(x))
	}
	return bytes
}

// half rounds a number to the nearest float16, to even between two.
func half(x float64) uint16 {
	sign := uint16(math.Float64bits(x) >> 48 & 0x8000)
	x = math.Abs(x)
	switch {
	case x != x:
		return sign | 0x7e00
	case x >= 65520:
		return sign | 0x7c00
	case x < 0x1p-14: // subnormal: multiples of 2^-24
		return sign | uint16(math.RoundToEven(x*0x1p24))
	}
	fraction, exponent := math.Frexp(x) // fraction in [0.5, 1)
	// A carry of the mantissa goes into the exponent, as it should.
	return sign | uint16(int(math.RoundToEven(fraction*0x1p11))-1<<10+(exponent+14)<<10)
}
