// Algorithms in which no rank is special.

package message

import "sagecomm/internal/coll"

// Plans returns the plans of a whole group. The rank of the place does not matter, and a chunk of 0 stands for the
// shortest one.
func Plans(kind coll.Kind, algorithm string, at Place) (Group, error) {
	at.Rank, at.Chunk = 0, max(at.Chunk, Unit)
	f, err := find(kind, algorithm, at)
	if err != nil {
		return Group{}, err
	}
	if err := f.build(at).Validate(); err != nil {
		return Group{}, err
	}
	build := func(rank int) Plan {
		at := at
		at.Rank = rank
		return f.build(at)
	}
	return Group{Size: at.Size, Build: build, Turned: Turns(kind, algorithm), Digits: alike(kind, algorithm, at),
		Telling: telling(kind, algorithm, at)}, nil
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
