package hccl

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/vendor"
)

// table has the numbers of HcclDataType and HcclReduceOp (hccl_types.h:73 and :60), which are not those of aclDataType. HCCL's documentation
// lists what the series A2 and A3 reduce (hcomm, docs/zh/api_ref/comm_op_interface). A 910 has neither int16 nor bfloat16,
// and refuses them.
var table = vendor.Basic{
	Elements: map[coll.DataType]vendor.Element{
		coll.Int8: {Type: 0, Bytes: 1}, coll.Int16: {Type: 1, Bytes: 2}, coll.Int32: {Type: 2, Bytes: 4}, coll.Float16: {Type: 3, Bytes: 2},
		coll.Float32: {Type: 4, Bytes: 4}, coll.Int64: {Type: 5, Bytes: 8}, coll.Uint64: {Type: 6, Bytes: 8}, coll.Uint8: {Type: 7, Bytes: 1},
		coll.Uint16: {Type: 8, Bytes: 2}, coll.Uint32: {Type: 9, Bytes: 4}, coll.Float64: {Type: 10, Bytes: 8}, coll.BFloat16: {Type: 11, Bytes: 2},
	},
	Reduced: []coll.DataType{coll.Int8, coll.Int16, coll.Int32, coll.Int64, coll.Float16, coll.Float32, coll.BFloat16},
	Without: map[coll.DataType]bool{coll.Int16: true, coll.BFloat16: true},
	Ops:     map[coll.ReduceOp]int32{coll.Sum: 0, coll.Product: 1, coll.Max: 2, coll.Min: 3},
	Byte:    vendor.Element{Type: 7, Bytes: 1},
	Bool:    coll.Int8,
}

// Element implements vendor.Library.
func (Library) Element(t coll.DataType) vendor.Element { return table.Element(t) }

// Reduction implements vendor.Library.
func (Library) Reduction(op coll.ReduceOp, t coll.DataType) (vendor.Reduction, bool) {
	return table.Reduction(op, t)
}
