package devices

import (
	"encoding/binary"
	"math"
	"unsafe"

	"sagecomm/internal/coll"
)

func uintptrOf(data []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(data))) }

// elements are small numbers, which all types hold, as bytes of a type. A complex number has the number in both parts.
func elements(t coll.DataType, values []float64) (data []byte) {
	for _, x := range values {
		bits := math.Float32bits(float32(x))
		switch t {
		case coll.Float64:
			data = binary.NativeEndian.AppendUint64(data, math.Float64bits(x))
		case coll.Complex128:
			data = binary.NativeEndian.AppendUint64(data, math.Float64bits(x))
			data = binary.NativeEndian.AppendUint64(data, math.Float64bits(x))
		case coll.Float32:
			data = binary.NativeEndian.AppendUint32(data, bits)
		case coll.Complex64:
			data = binary.NativeEndian.AppendUint32(data, bits)
			data = binary.NativeEndian.AppendUint32(data, bits)
		case coll.BFloat16:
			data = binary.NativeEndian.AppendUint16(data, uint16(bits>>16))
		case coll.Float16:
			half := uint16(0)
			if x != 0 {
				half = uint16((bits>>23-112)<<10 | bits>>13&0x3ff)
			}
			data = binary.NativeEndian.AppendUint16(data, half)
		default: // integers, booleans and what is only moved
			n := binary.NativeEndian.AppendUint64(nil, uint64(x))
			data = append(data, n[:t.Size()]...)
		}
	}
	return data
}

// input is that of a rank.
func input(t coll.DataType, rank, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = float64((i + rank) % 3)
		if t == coll.Bool {
			values[i] = float64((i + rank) % 2)
		}
	}
	return values
}

// reduced is what a reduction of the inputs gives.
func reduced(op coll.ReduceOp, t coll.DataType, factor float64, inputs ...[]float64) []float64 {
	result := make([]float64, len(inputs[0]))
	for i := range result {
		x := inputs[0][i]
		for _, input := range inputs[1:] {
			y := input[i]
			switch op {
			case coll.Sum, coll.Avg, coll.PremulSum:
				x += y
			case coll.Product:
				x *= y
			case coll.Min:
				x = min(x, y)
			case coll.Max:
				x = max(x, y)
			case coll.BAnd:
				x = float64(int(x) & int(y))
			case coll.BOr:
				x = float64(int(x) | int(y))
			case coll.BXor:
				x = float64(int(x) ^ int(y))
			}
		}
		switch {
		case t == coll.Bool:
			x = min(x, 1)
		case op == coll.PremulSum:
			x *= factor
		case op == coll.Avg:
			x /= float64(len(inputs))
		}
		result[i] = x
	}
	return result
}
