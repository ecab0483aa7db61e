package sendrecv

import (
	"fmt"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// LongestChunk returns the longest chunk of an algorithm, among chunks with pieces of equal length, for which no rank
// sends a message of more than that many bytes. The chunk and the rank of the place do not matter, nor does the root:
// ranks are counted from it on.
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

// mostPieces returns the number of pieces of the message with the most pieces.
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

// telling returns a few ranks that stand for all: one of them sends the longest message, and one sends or takes the most
// bytes. If all ranks are alike, rank 0 is enough. Other algorithms consist of trees and hypercubes, counted from the root
// on, in which the ranks next to powers of two do the most. A test compares the result with all ranks.
func telling(kind coll.Kind, algorithm string, at Place) []int {
	list := []int{0}
	if allAlike(kind, algorithm, at) {
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
