// How long chunks may be where messages may not be longer than the places of a channel.

package sendrecv

import (
	"fmt"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// LongestChunk is the longest chunk of an algorithm, of those with pieces of equal length, for which no rank sends a
// message of more than so many bytes. The chunk and the rank of the place do not matter, nor does the root: ranks are
// counted from it on.
func LongestChunk(kind coll.Kind, algorithm string, at Place, bytes int) (int, error) {
	at.Chunk, at.Root = plan.Unit, 0
	pieces, most := 1, 0
	for _, at.Rank = range telling(kind, algorithm, at) {
		p, err := Build(kind, algorithm, at)
		if err != nil {
			return 0, err
		}
		pieces, most = p.Pieces, max(most, mostPieces(p))
	}
	units := bytes / plan.Unit
	if most > 0 {
		units /= most
	}
	if units == 0 {
		return 0, fmt.Errorf(
			"%v %s among %d ranks sends messages of %d pieces, each of at least %d bytes: they do not fit into %d bytes",
			kind, algorithm, at.Size, most, plan.Unit, bytes)
	}
	return units * plan.Unit * pieces, nil
}

// most is the most pieces of a message.
func mostPieces(p plan.SendRecvPlan) (most int) {
	for _, s := range p.Steps {
		if s.Op == plan.Send {
			sum := 0
			for _, r := range s.From {
				sum += r.Count
			}
			most = max(most, sum)
		}
	}
	return most
}

// telling are ranks among which there is one that sends the longest message and one that sends or takes the most: in a
// group in which all ranks are alike the first one. Others are made of trees and hypercubes, counted from the root on,
// in which those next to powers of two are the largest. A test compares with all ranks.
func telling(kind coll.Kind, algorithm string, at Place) []int {
	list := []int{0}
	if digits := alike(kind, algorithm, at); digits != nil {
		return list
	}
	see := func(rank int) {
		if rank = mod(rank, at.Size); !slices.Contains(list, rank) {
			list = append(list, rank)
		}
	}
	for bit := 1; bit < at.Size; bit *= 2 {
		for _, near := range []int{-1, 0, 1} {
			see(at.Root + bit + near)
			see(at.Root - bit + near)
		}
	}
	for _, ranks := range at.Hosts[:min(len(at.Hosts), 2)] {
		see(ranks[0])
	}
	return list
}
