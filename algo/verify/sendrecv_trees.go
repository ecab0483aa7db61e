package verify

import (
	"fmt"
	"math/bits"
)

// source is where a contribution comes from: a unit of a block of a rank's input.
type source struct{ block, unit int32 }

// unitValue is the value of a unit of memory: a tree of reductions, which has the reduced contributions and their order. Each
// leaf is this unit of some rank's input. Tree 0 stands for memory that was never written.
type unitValue struct {
	tree int32
	source
}

// ranks is a set of ranks.
type ranks []uint64

func (r ranks) add(rank int) { r[rank/64] |= 1 << (rank % 64) }

func (r ranks) join(other ranks) {
	for i := range other {
		r[i] |= other[i]
	}
}

// common returns the lowest rank in both sets, or -1.
func (r ranks) common(other ranks) int {
	for i := range r {
		if both := r[i] & other[i]; both != 0 {
			return i*64 + bits.TrailingZeros64(both)
		}
	}
	return -1
}

// missing returns the lowest of size ranks that is not in the set, or -1.
func (r ranks) missing(size int) int {
	for rank := range size {
		if r[rank/64]>>(rank%64)&1 == 0 {
			return rank
		}
	}
	return -1
}

// trees holds every tree once, so two trees are equal exactly if their numbers are.
type trees struct {
	size  int
	nodes []node // by number; 0 is none, 1 + rank that rank's own contribution
	known map[[2]int32]int32
	// last holds the latest combination and its result: neighbouring units are usually combined alike.
	last struct{ left, right, result int32 }
	sets slab[uint64]
}

// node is a tree of reductions: a contribution, or the reduction of two trees.
type node struct {
	left, right int32 // 0 in a leaf
	of          ranks
	lacks       int // the lowest rank that is not in it, or -1
}

// newTrees returns the trees of single contributions.
func newTrees(size int) *trees {
	t := &trees{size: size, nodes: make([]node, 1+size), known: map[[2]int32]int32{}}
	for rank := range size {
		of := t.newRanks()
		of.add(rank)
		t.nodes[1+rank] = node{of: of, lacks: of.missing(size)}
	}
	return t
}

func (t *trees) newRanks() ranks { return t.sets.take((t.size + 63) / 64) }

func (t *trees) leaf(rank int) int32 { return int32(1 + rank) }

func (t *trees) missing(tree int32) int { return t.nodes[tree].lacks }

// combine returns the reduction of two values, in this order.
func (t *trees) combine(left, right unitValue) (unitValue, error) {
	if left.source != right.source {
		return unitValue{}, fmt.Errorf("reduces %s with %s", t.format(left), t.format(right))
	}
	if t.last.left == left.tree && t.last.right == right.tree {
		return unitValue{t.last.result, left.source}, nil
	}
	key := [2]int32{left.tree, right.tree}
	n, ok := t.known[key]
	if !ok {
		var err error
		if n, err = t.grow(left, right); err != nil {
			return unitValue{}, err
		}
		t.known[key] = n
	}
	t.last.left, t.last.right, t.last.result = left.tree, right.tree, n
	return unitValue{n, left.source}, nil
}

// grow makes the tree of two trees.
func (t *trees) grow(left, right unitValue) (int32, error) {
	a, b := t.nodes[left.tree].of, t.nodes[right.tree].of
	if twice := a.common(b); twice >= 0 {
		return 0, fmt.Errorf("reduces %s with %s: rank %d's contribution is in both", t.format(left), t.format(right), twice)
	}
	of := t.newRanks()
	of.join(a)
	of.join(b)
	t.nodes = append(t.nodes, node{left.tree, right.tree, of, of.missing(t.size)})
	return int32(len(t.nodes) - 1), nil
}

// format writes a value as the sum of ranks' contributions with its source: "(0 + 1) + 2 of unit 3 of block 0".
func (t *trees) format(v unitValue) string {
	if v.tree == 0 {
		return "nothing"
	}
	var tree func(n int32, inner bool) string
	tree = func(n int32, inner bool) string {
		if t.nodes[n].left == 0 {
			return fmt.Sprint(n - 1)
		}
		text := tree(t.nodes[n].left, true) + " + " + tree(t.nodes[n].right, true)
		if inner {
			text = "(" + text + ")"
		}
		return text
	}
	return fmt.Sprintf("%s of unit %d of block %d", tree(v.tree, false), v.unit, v.block)
}
