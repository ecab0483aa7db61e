// Groups in which one rank's steps tell those of all.

package sendrecv

import (
	"math/bits"

	"sagecomm/internal/coll"
)

// symmetric lists algorithms whose ranks all do the same at the same time in groups of some sizes: writing ranks as
// numbers with these digits, the lowest one first, rank r's plan is rank 0's with r added to every peer, digit by digit
// and without carry. An algorithm that is not listed is priced as well, only not as fast.
var symmetric = map[coll.Kind]map[string]func(size int) []int{
	coll.AllReduce: {Ring: rotation, RecursiveDoubling: cube, Rabenseifner: cube, Torus: grid2},
	coll.AllGather: {Ring: rotation, Direct: rotation, Bruck: rotation, RecursiveDoubling: cube},
	coll.ReduceScatter: {
		Ring: rotation, Direct: rotation, Bruck: rotation, RecursiveHalving: cube,
	},
	coll.AllToAll: {Pairwise: rotation, Direct: rotation, Bruck: rotation},
	coll.Barrier:  {Dissemination: rotation},
}

// alike returns the digits in which the ranks of a group are alike, or nil where they are not.
func alike(kind coll.Kind, algorithm string, at Place) []int {
	if digits := symmetric[kind][algorithm]; digits != nil && at.Size > 1 {
		return digits(at.Size)
	}
	return nil
}

// rotation has one digit: ranks on a circle.
func rotation(size int) []int { return []int{size} }

// cube has a digit for each bit, of a power of two.
func cube(size int) []int {
	if size&(size-1) != 0 {
		return nil
	}
	digits := make([]int, bits.Len(uint(size))-1)
	for i := range digits {
		digits[i] = 2
	}
	return digits
}

// grid2 has the digits of rows and columns of a torus.
func grid2(size int) []int {
	g := rows(Place{Size: size})
	return []int{g.width(), g.height()}
}

// turned lists the algorithms in which the plan of rank r is that of rank 0 turned by r.
var turned = map[coll.Kind][]string{
	coll.AllReduce:     {Ring},
	coll.AllGather:     {Ring, Bruck, Direct},
	coll.ReduceScatter: {Ring, Bruck, Direct},
	coll.AllToAll:      {Pairwise, Direct, Bruck},
	coll.Barrier:       {Dissemination},
}

// Turns says whether the plan of rank r is, for every size, that of rank 0 with r added to each peer, and to each block
// or, where buffers are flat, each piece, all of them modulo the size. Thousands of ranks can then be played with the
// plan of one, see [Group]. An algorithm that turns and is not listed here only takes longer to play.
func Turns(kind coll.Kind, algorithm string) bool {
	for _, name := range turned[kind] {
		if name == algorithm {
			return true
		}
	}
	return false
}
