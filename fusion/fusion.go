// Package fusion decides which operations of one coalesced call share a collective, and in which order the collectives
// run. It sees descriptions only: no memory, no clock, no other rank. All ranks make the same coalesced call and must come
// to the same answer, so the decision uses nothing that only one rank knows (lengths of an all_to_all's blocks, the factor of
// PREMUL_SUM, addresses).
//
// [Plan] is pure, and any goroutine may call it.
package fusion

import "sagecomm/internal/coll"

// like holds the properties, apart from the type, that operations must share to be packed together or to change places. The caller
// promises that the operations of one call are independent.
type like struct {
	kind   coll.Kind
	reduce coll.ReduceOp
	root   int
}

func likeOf(op coll.Op) like {
	l := like{kind: op.Kind}
	if op.Kind.Reduces() {
		l.reduce = op.Reduce
	}
	if op.Kind.Rooted() {
		l.root = op.Root
	}
	return l
}

// joins reports whether an operation can be packed together with others like it. Three kinds cannot: operations whose blocks differ
// in length, because the blocks of two operations would lie at different places; an all_to_all, because only two ranks know the
// length of a block; and PREMUL_SUM, because a collective has one factor and each operation has its own.
func joins(op coll.Op) bool {
	switch op.Kind {
	case coll.AllReduce, coll.Reduce, coll.ReduceScatter:
		return op.Reduce != coll.PremulSum && !op.Uneven()
	case coll.Broadcast, coll.AllGather, coll.Gather, coll.Scatter:
		return !op.Uneven()
	default:
		return false
	}
}

// Plan returns for each operation the number of the batch that it is part of: one collective, or one p2p operation. Batches are
// issued in the order of their numbers, which count from 0 and rise with each batch's first operation. An operation joins
// the batch of its type as long as only operations like it stand between; so [f32, f16, f32] of one all_reduce are two
// batches, and nothing moves past a collective of another kind, another reduction or another root.
//
// On devices sends come first and recvs last. The caller's stream may wait for the end of each operation, and then the input of
// a later one comes behind it; so an exchange in one call would wait for itself if its recvs came first.
func Plan(ops []coll.Op) []uint32 {
	batch := inOrder(ops)
	if len(ops) > 0 && !ops[0].Device.IsHost() {
		sendsFirst(ops, batch)
	}
	return batch
}

// sendsFirst numbers the batches anew: sends, collectives, recvs, each in their order.
func sendsFirst(ops []coll.Op, batch []uint32) {
	next := uint32(0)
	for now := range 3 {
		number := map[uint32]uint32{} // by the old one; operations of one batch have one kind
		for i, op := range ops {
			if turn(op.Kind) != now {
				continue
			}
			if _, known := number[batch[i]]; !known {
				number[batch[i]] = next
				next++
			}
			batch[i] = number[batch[i]]
		}
	}
}

func turn(kind coll.Kind) int {
	switch {
	case kind == coll.Send:
		return 0
	case kind.Collective():
		return 1
	default:
		return 2
	}
}

func inOrder(ops []coll.Op) []uint32 {
	batch := make([]uint32, len(ops))
	open := map[coll.DataType]uint32{}
	var stretch like
	next := uint32(0)
	for i, op := range ops {
		if l := likeOf(op); i == 0 || l != stretch {
			clear(open)
			stretch = l
		}
		if number, there := open[op.Type]; there && joins(op) {
			batch[i] = number
			continue
		}
		batch[i] = next
		if joins(op) {
			open[op.Type] = next
		}
		next++
	}
	return batch
}
