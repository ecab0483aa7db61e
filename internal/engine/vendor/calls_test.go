package vendor

import (
	"reflect"
	"testing"

	"sagecomm/internal/coll"
)

// table is a library that has one type of four bytes, and sums of it.
type table struct{ Library }

func (table) Element(coll.DataType) Element { return Element{Type: 7, Bytes: 4} }
func (table) Reduction(op coll.ReduceOp, _ coll.DataType) (Reduction, bool) {
	return Reduction{Element: Element{Type: 7, Bytes: 4}, Op: int32(op)}, op != coll.BXor
}

func TestCalls(t *testing.T) {
	const in, out = 1000, 2000
	move := Reduction{Element: Element{Type: 7, Bytes: 4}}
	call := func(kind CallKind, from, to uintptr, count uint64, peer int) Call {
		return Call{Kind: kind, From: from, To: to, Count: count, Reduction: move, Peer: peer}
	}
	for _, c := range []struct {
		op   coll.Op
		rank int
		want []Call
	}{
		{coll.Op{Kind: coll.AllReduce, In: 40, Out: 40}, 0, []Call{call(AllReduce, in, out, 10, 0)}},
		{coll.Op{Kind: coll.AllReduce}, 0, nil},
		{coll.Op{Kind: coll.Broadcast, Root: 1, In: 40, Out: 40}, 1, []Call{call(Broadcast, in, out, 10, 1)}},
		{coll.Op{Kind: coll.Broadcast, Root: 1, Out: 40}, 0, []Call{call(Broadcast, out, out, 10, 1)}},
		{coll.Op{Kind: coll.Reduce, Root: 1, In: 40}, 0, []Call{call(Reduce, in, out, 10, 1)}},
		{coll.Op{Kind: coll.AllGather, In: 40, Out: 80}, 0, []Call{call(AllGather, in, out, 10, 0)}},
		{coll.Op{Kind: coll.AllGather, In: 40, Out: 80, OutBlocks: []uint64{40, 40}}, 0, []Call{call(AllGather, in, out, 10, 0)}},
		{coll.Op{Kind: coll.AllGather, In: 8, Out: 12, OutBlocks: []uint64{4, 8}}, 1,
			[]Call{call(Broadcast, out, out, 1, 0), call(Broadcast, in, out+4, 2, 1)}},
		{coll.Op{Kind: coll.ReduceScatter, In: 80, Out: 40}, 0, []Call{call(ReduceScatter, in, out, 10, 0)}},
		{coll.Op{Kind: coll.ReduceScatter, In: 12, Out: 8, InBlocks: []uint64{4, 8}}, 1,
			[]Call{call(Reduce, in, out, 1, 0), call(Reduce, in+4, out, 2, 1)}},
		{coll.Op{Kind: coll.AllToAll, In: 4, Out: 12, InBlocks: []uint64{4, 0}, OutBlocks: []uint64{4, 8}}, 0,
			[]Call{call(Send, in, 0, 1, 0), call(Recv, 0, out, 1, 0), call(Recv, 0, out+4, 2, 1)}},
		{coll.Op{Kind: coll.Gather, Root: 1, In: 40}, 0, []Call{call(Send, in, 0, 10, 1)}},
		{coll.Op{Kind: coll.Gather, Root: 1, In: 40, Out: 80}, 1,
			[]Call{call(Send, in, 0, 10, 1), call(Recv, 0, out, 10, 0), call(Recv, 0, out+40, 10, 1)}},
		{coll.Op{Kind: coll.Scatter, Root: 1, Out: 40}, 0, []Call{call(Recv, 0, out, 10, 1)}},
		{coll.Op{Kind: coll.Scatter, Root: 1, In: 80, Out: 40}, 1,
			[]Call{call(Send, in, 0, 10, 0), call(Send, in+40, 0, 10, 1), call(Recv, 0, out, 10, 1)}},
	} {
		if got := callsFor(table{}, c.op, c.rank, 2, Buffers{In: in, Out: out}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v on rank %d:\n got %+v\nwant %+v", c.op, c.rank, got, c.want)
		}
	}
	barrier := callsFor(table{}, coll.Op{Kind: coll.Barrier}, 0, 2, Buffers{Scratch: in})
	if len(barrier) != 1 || barrier[0].Kind != AllReduce || barrier[0].Count != 1 {
		t.Errorf("barrier: %+v", barrier)
	}
}
