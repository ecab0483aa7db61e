package sendrecv

import (
	"math/bits"
	"slices"

	"sagecomm/internal/coll"
)

// symmetric maps an algorithm to a function of the group's size. It returns the radices of [plan.Group.Digits] where all
// ranks do the same at the same time, else nil. An algorithm that is missing here is priced as well, but more slowly.
var symmetric = map[coll.Kind]map[string]func(size int) []int{
	coll.AllReduce: {Ring: rotation, RecursiveDoubling: cube, Rabenseifner: cube, Torus: grid2},
	coll.AllGather: {Ring: rotation, Direct: rotation, Bruck: rotation, RecursiveDoubling: cube},
	coll.ReduceScatter: {
		Ring: rotation, Direct: rotation, Bruck: rotation, RecursiveHalving: cube,
	},
	coll.AllToAll: {Pairwise: rotation, Direct: rotation, Bruck: rotation},
	coll.Barrier:  {Dissemination: rotation},
}

// alongHosts maps a hierarchical algorithm to a function that returns the radices for a number of hosts, above the digit
// of a rank's number on its host. That digit comes first, since inside hosts there are rings and exchanges of all pairs.
var alongHosts = map[coll.Kind]func(hosts int) []int{
	coll.AllReduce: cube, coll.AllGather: rotation, coll.ReduceScatter: rotation, coll.AllToAll: rotation,
}

// alikeOnHosts returns [plan.Group.Digits] of a hierarchical algorithm, or nil if hosts do not have consecutive ranks.
func alikeOnHosts(kind coll.Kind, at Place) []int {
	digits, width := alongHosts[kind], RanksPerHost(at.Hosts)
	if digits == nil || width == 0 {
		return nil
	}
	return append([]int{width}, digits(len(at.Hosts))...)
}

// alike returns [plan.Group.Digits] of a group, or nil if its ranks differ.
func alike(kind coll.Kind, algorithm string, at Place) []int {
	if algorithm == Hierarchical {
		return alikeOnHosts(kind, at)
	}
	if digits := symmetric[kind][algorithm]; digits != nil && at.Size > 1 {
		return digits(at.Size)
	}
	return nil
}

// allAlike reports whether all ranks do the same at the same time.
func allAlike(kind coll.Kind, algorithm string, at Place) bool {
	digits, product := alike(kind, algorithm, at), 1
	for _, radix := range digits {
		product *= radix
	}
	return digits != nil && product == at.Size
}

// rotation returns one digit: the ranks of a circle are alike.
func rotation(size int) []int { return []int{size} }

// cube returns a digit for each bit of a power of two.
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

// grid2 returns the digits of the rows and columns of a torus.
func grid2(size int) []int {
	g := rows(Place{Size: size})
	return []int{g.width(), g.height()}
}

// turned lists the algorithms in which the plan of rank r is that of rank 0 turned by r, see [plan.Group.Turned]. An
// algorithm that is missing here only takes longer to play.
var turned = map[coll.Kind][]string{
	coll.AllReduce:     {Ring},
	coll.AllGather:     {Ring, Bruck, Direct},
	coll.ReduceScatter: {Ring, Bruck, Direct},
	coll.AllToAll:      {Pairwise, Direct, Bruck},
	coll.Barrier:       {Dissemination},
}

// Turns reports whether the plans of an algorithm turn, for every size.
func Turns(kind coll.Kind, algorithm string) bool {
	return slices.Contains(turned[kind], algorithm)
}

// logarithmic lists the algorithms in which the longest path has about as many messages as the number of ranks, or of
// hosts, has digits.
var logarithmic = map[coll.Kind][]string{
	coll.AllReduce:     {RecursiveDoubling, RecursiveMultiplying, Rabenseifner, Binomial, DoubleTree},
	coll.AllGather:     {RecursiveDoubling, Bruck},
	coll.ReduceScatter: {RecursiveHalving, Bruck},
	coll.Broadcast:     {Binomial, DoubleTree, Hierarchical},
	coll.Reduce:        {Binomial, DoubleTree, Hierarchical},
	coll.AllToAll:      {Bruck},
	coll.Gather:        {Binomial},
	coll.Scatter:       {Binomial},
	coll.Barrier:       {Dissemination, Binomial},
}

// Logarithmic reports whether an algorithm needs only about as many steps as the number of ranks has digits.
func Logarithmic(kind coll.Kind, algorithm string) bool {
	return slices.Contains(logarithmic[kind], algorithm)
}
