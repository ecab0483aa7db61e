package sendrecv

import (
	"math/bits"

	"sagecomm/algo/plan"
)

// tree is a rank's place in a tree.
type tree struct {
	parent   int   // -1 at the root
	children []int // in the order in which they are served
	depth    int   // messages from the root
}

// binomial returns a rank's place in the tree of recursive halving of the ranks counted from root on. The children of
// rank v, so counted, are v+1, v+2, v+4, ... as long as these distances are below v's lowest bit (Chan et al., CCPE
// 2007). The child with the most descendants is the last one.
func binomial(rank, size, root int) tree {
	v := mod(rank-root, size)
	t := tree{parent: -1}
	for distance := 1; distance < size; distance *= 2 {
		if v&distance != 0 {
			t.parent = mod(v-distance+root, size)
			break
		}
		if v+distance < size {
			t.children = append(t.children, mod(v+distance+root, size))
		}
	}
	for ; v > 0; v &= v - 1 {
		t.depth++
	}
	return t
}

// subtree returns the number of ranks in the subtree of rank v > 0 of a binomial tree: v and the ranks that follow it, counted
// from the root on.
func subtree(v, size int) int { return min(v&-v, size-v) }

// balanced returns a rank's place in the in-order binary tree: odd ranks are leaves, and a rank whose lowest bit is 2^h
// has its children 2^(h-1) to either side, or nearer ones where the tree is not full (Sanders, Speck, Träff, Parallel
// Computing 2009; in the form that NCCL uses). Rank 0 is the root, with one child.
func balanced(rank, size int) tree {
	t := tree{parent: parentInBalanced(rank, size)}
	for v := t.parent; v >= 0; v = parentInBalanced(v, size) {
		t.depth++
	}
	// The distance between child and parent is a power of two.
	for distance := 1; distance < 2*size; distance *= 2 {
		for _, child := range []int{rank - distance, rank + distance} {
			if child > 0 && child < size && parentInBalanced(child, size) == rank {
				t.children = append(t.children, child)
			}
		}
	}
	return t
}

// height returns a bound of the depths of balanced and binomial trees.
func height(size int) int { return bits.Len(uint(size - 1)) }

// parentInBalanced returns the parent of a rank in the in-order binary tree, or -1. Where ranks are missing above, it
// is the next lower one that exists.
func parentInBalanced(rank, size int) int {
	if rank == 0 {
		return -1
	}
	bit := rank & -rank
	if up := rank&^bit | bit<<1; up < size {
		return up
	}
	return rank &^ bit
}

// double returns a rank's places in the two trees of a double tree. An inner rank of one tree is a leaf of the other,
// so that each rank sends and receives the same number of bytes. The second tree is the first one mirrored or, where
// the size is odd, shifted by one.
func double(rank, size int) [2]tree {
	there := func(r int) int { return mod(r-1, size) }
	back := func(r int) int { return mod(r+1, size) }
	if size%2 == 0 {
		there = func(r int) int { return size - 1 - r }
		back = there
	}
	second := balanced(there(rank), size)
	if second.parent >= 0 {
		second.parent = back(second.parent)
	}
	for i, child := range second.children {
		second.children[i] = back(child)
	}
	return [2]tree{balanced(rank, size), second}
}

// up reduces regions towards the root of a tree. It reduces own bytes and the children's messages into acc, and sends
// acc, or the own bytes of a leaf, to the parent. Lower ranks are the left operand where the tree is in order.
func (m *maker) up(t tree, own, acc []plan.Region) {
	from := own
	for _, child := range t.children {
		if child < m.Rank {
			m.recvReduceFirst(child, from, acc)
		} else {
			m.recvReduce(child, from, acc)
		}
		from = acc
	}
	if t.parent >= 0 {
		m.send(t.parent, from...)
	}
}

// down spreads regions from the root of a tree.
func (m *maker) down(t tree, regions []plan.Region) {
	if t.parent >= 0 {
		m.recv(t.parent, regions...)
	}
	for i := len(t.children) - 1; i >= 0; i-- {
		m.send(t.children[i], regions...)
	}
}

// chain returns a rank's place in the tree in which each rank, counted from the root on, has the next one as its child.
func chain(rank, size, root int) tree {
	v := mod(rank-root, size)
	t := tree{parent: -1, depth: v}
	if v > 0 {
		t.parent = mod(rank-1, size)
	}
	if v < size-1 {
		t.children = []int{mod(rank+1, size)}
	}
	return t
}
