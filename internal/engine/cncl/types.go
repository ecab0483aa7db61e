package cncl

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/vendor"
)

// table has the numbers of cnclDataType_t and cnclReduceOp_t (cncl.h, Data Type Definitions). The header does not say which types CNCL
// reduces, so these are those that torch_mlu gives to it. There is no double: torch_mlu takes a float for it, and this table does not.
var table = vendor.Basic{
	Elements: map[coll.DataType]vendor.Element{
		coll.Float16: {Type: 0x10, Bytes: 2}, coll.BFloat16: {Type: 0x11, Bytes: 2}, coll.Float32: {Type: 0x12, Bytes: 4},
		coll.Int8: {Type: 0x20, Bytes: 1}, coll.Int16: {Type: 0x21, Bytes: 2}, coll.Int32: {Type: 0x22, Bytes: 4}, coll.Int64: {Type: 0x23, Bytes: 8},
		coll.Uint8: {Type: 0x30, Bytes: 1}, coll.Uint16: {Type: 0x31, Bytes: 2}, coll.Uint32: {Type: 0x32, Bytes: 4}, coll.Uint64: {Type: 0x33, Bytes: 8},
	},
	Reduced: []coll.DataType{coll.Float16, coll.BFloat16, coll.Float32, coll.Int8, coll.Int32, coll.Int64, coll.Uint8},
	Ops:     map[coll.ReduceOp]int32{coll.Sum: 0, coll.Product: 1, coll.Max: 2, coll.Min: 3},
	Byte:    vendor.Element{Type: 0x30, Bytes: 1},
	Bool:    coll.Uint8,
}

// Element implements vendor.Library.
func (Library) Element(t coll.DataType) vendor.Element { return table.Element(t) }

// Reduction implements vendor.Library.
func (Library) Reduction(op coll.ReduceOp, t coll.DataType) (vendor.Reduction, bool) {
	return table.Reduction(op, t)
}
