// Algorithms in which no rank is special.

package message

import "sagecomm/internal/coll"

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
