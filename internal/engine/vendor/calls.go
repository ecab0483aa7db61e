package vendor

import "sagecomm/internal/coll"

// barrierBytes are the bytes that a barrier reduces.
const barrierBytes = 4

// callsFor returns the calls of a library that carry out an operation. All ranks make calls that fit together, because they depend
// on nothing but what the ranks have in common, and on each pair's own blocks in an all_to_all.
// Requires: supports(library, op).
func callsFor(library Library, op coll.Op, rank, size int, b Buffers) (calls []Call) {
	move := Reduction{Element: library.Element(op.Type)}
	add := func(kind CallKind, how Reduction, from, to uintptr, bytes uint64, peer int) {
		if bytes > 0 {
			calls = append(calls, Call{kind, from, to, bytes / how.Bytes, how, op.Factor, peer})
		}
	}
	how := move
	if op.Kind.Reduces() {
		how, _ = library.Reduction(op.Reduce, op.Type)
	}
	ins, outs := offsets(op.InBlocks, op.In, size), offsets(op.OutBlocks, op.Out, size)
	in := func(i int) (uintptr, uint64) { return b.In + uintptr(ins[i]), ins[i+1] - ins[i] }
	out := func(i int) (uintptr, uint64) { return b.Out + uintptr(outs[i]), outs[i+1] - outs[i] }
	switch op.Kind {
	case coll.AllReduce:
		add(AllReduce, how, b.In, b.Out, op.In, 0)
	case coll.Barrier:
		sum, _ := library.Reduction(coll.Max, coll.Int32)
		add(AllReduce, sum, b.Scratch, b.Scratch, barrierBytes, 0)
	case coll.Broadcast:
		from := b.In
		if rank != op.Root {
			from = b.Out
		}
		add(Broadcast, move, from, b.Out, op.Out, op.Root)
	case coll.Reduce:
		add(Reduce, how, b.In, b.Out, op.In, op.Root)
	case coll.AllGather:
		if !op.Uneven() {
			add(AllGather, move, b.In, b.Out, op.In, 0)
			break
		}
		for i := range size {
			to, bytes := out(i)
			from := to
			if i == rank {
				from = b.In
			}
			add(Broadcast, move, from, to, bytes, i)
		}
	case coll.ReduceScatter:
		if !op.Uneven() {
			add(ReduceScatter, how, b.In, b.Out, op.Out, 0)
			break
		}
		for i := range size {
			from, bytes := in(i)
			add(Reduce, how, from, b.Out, bytes, i)
		}
	case coll.AllToAll:
		for i := range size {
			from, bytes := in(i)
			add(Send, move, from, 0, bytes, i)
			to, bytes := out(i)
			add(Recv, move, 0, to, bytes, i)
		}
	case coll.Gather:
		add(Send, move, b.In, 0, op.In, op.Root)
		for i := range size {
			if rank == op.Root {
				to, bytes := out(i)
				add(Recv, move, 0, to, bytes, i)
			}
		}
	case coll.Scatter:
		for i := range size {
			if rank == op.Root {
				from, bytes := in(i)
				add(Send, move, from, 0, bytes, i)
			}
		}
		add(Recv, move, 0, b.Out, op.Out, op.Root)
	}
	return calls
}

// offsets returns where the blocks of a buffer begin, and its end.
func offsets(blocks []uint64, total uint64, size int) []uint64 {
	list := make([]uint64, size+1)
	for i := range size {
		n := total / uint64(size)
		if blocks != nil {
			n = blocks[i]
		}
		list[i+1] = list[i] + n
	}
	return list
}

// supports reports whether the library carries out such operations.
func supports(library Library, op coll.Op) bool {
	if !op.Kind.Reduces() {
		return true
	}
	_, ok := library.Reduction(op.Reduce, op.Type)
	return ok
}
