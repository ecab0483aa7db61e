// Groups in which one rank's steps tell those of all.

package message

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

// opposite is the rank that is as far behind rank 0 as another one is ahead of it.
func opposite(rank int, digits []int) int {
	behind, weight := 0, 1
	for _, radix := range digits {
		behind += mod(-rank, radix) * weight
		rank, weight = rank/radix, weight*radix
	}
	return behind
}

// forAll turns rank 0's plan into one for a group of one that takes as long: what rank 0 receives is sent at the same
// time and in the same order as what it sends to the rank opposite, so it takes its own messages in their stead. Each
// way is a channel from the rank to itself. There are more ways than channels in groups of more than 256 ranks of which
// each sends to all others: those then share channels, in the same order at both ends.
func forAll(p Plan, digits []int) Plan {
	type way struct {
		peer    int
		channel uint8
	}
	numbers := map[way]int{}
	steps := make([]Step, len(p.Steps))
	for i, s := range p.Steps {
		if s.Op <= RecvReduce {
			w := way{s.Peer, s.Channel}
			if s.Op != Send {
				w.peer = opposite(s.Peer, digits)
			}
			if _, known := numbers[w]; !known {
				numbers[w] = len(numbers)
			}
			s.Peer, s.Channel = p.Rank, uint8(numbers[w])
		}
		steps[i] = s
	}
	p.Steps = steps
	return p
}

// grid2 has the digits of rows and columns of a torus.
func grid2(size int) []int {
	g := rows(Place{Size: size})
	return []int{g.width(), g.height()}
}
