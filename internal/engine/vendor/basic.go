package vendor

import "sagecomm/internal/coll"

// Basic are the types and reductions of a library that has SUM, PRODUCT, MIN and MAX, and neither AVG nor factors.
type Basic struct {
	Elements map[coll.DataType]Element // those that the library has
	Reduced  []coll.DataType           // of these, those that it reduces
	Without  map[coll.DataType]bool    // of these, those without PRODUCT
	Ops      map[coll.ReduceOp]int32
	Byte     Element       // moves all other types
	Bool     coll.DataType // reduces booleans, which are bytes of 0 and 1
}

// ofBool are the reductions of booleans by the greatest or the least byte.
var ofBool = map[coll.ReduceOp]coll.ReduceOp{coll.Sum: coll.Max, coll.Max: coll.Max, coll.BOr: coll.Max, coll.Product: coll.Min,
	coll.Min: coll.Min, coll.BAnd: coll.Min}

// Element is Library.Element.
func (b *Basic) Element(t coll.DataType) Element {
	if e, ok := b.Elements[t]; ok {
		return e
	}
	return b.Byte
}

// Reduction is Library.Reduction. A complex number is two floats, except in a product.
func (b *Basic) Reduction(op coll.ReduceOp, t coll.DataType) (r Reduction, ok bool) {
	switch t {
	case coll.Bool:
		if op, ok = ofBool[op]; !ok {
			return r, false
		}
		t = b.Bool
	case coll.Complex64, coll.Complex128:
		if op == coll.Product {
			return r, false
		}
		t = map[coll.DataType]coll.DataType{coll.Complex64: coll.Float32, coll.Complex128: coll.Float64}[t]
	}
	if r.Op, ok = b.Ops[op]; !ok || op == coll.Product && b.Without[t] {
		return Reduction{}, false
	}
	for _, one := range b.Reduced {
		if one == t {
			r.Element = b.Elements[t]
			return r, true
		}
	}
	return Reduction{}, false
}
