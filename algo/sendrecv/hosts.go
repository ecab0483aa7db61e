package sendrecv

import (
	"fmt"
	"slices"

	"sagecomm/internal/coll"
)

// grid is a group as hosts of equally many ranks. Ranks with the same number on their hosts form a rail; messages
// between hosts go along all rails at the same time, each with its part.
type grid struct {
	hosts [][]int
	host  int // of this rank
	local int // its number on its host
}

// gridOf returns the grid of a place. Without hosts all ranks are on one host.
func gridOf(at Place) grid {
	g := grid{hosts: at.Hosts}
	if len(g.hosts) == 0 {
		g.hosts = [][]int{make([]int, at.Size)}
		for rank := range g.hosts[0] {
			g.hosts[0][rank] = rank
		}
	}
	g.host, g.local = g.find(at.Rank)
	return g
}

// find returns the host of a rank and its number there.
func (g grid) find(rank int) (host, local int) {
	for h, ranks := range g.hosts {
		for l, r := range ranks {
			if r == rank {
				return h, l
			}
		}
	}
	return -1, -1
}

// locals returns the ranks of this rank's host, rail those with the same number on their hosts.
func (g grid) locals() []int { return g.hosts[g.host] }

func (g grid) rail() []int {
	ranks := make([]int, len(g.hosts))
	for h := range g.hosts {
		ranks[h] = g.hosts[h][g.local]
	}
	return ranks
}

// width returns the number of ranks of a host, height the number of hosts.
func (g grid) width() int { return len(g.hosts[0]) }

func (g grid) height() int { return len(g.hosts) }

// inHost and inRail return the places of this rank in the group of its host and in that of its rail.
func (g grid) inHost(at Place, root int) Place {
	return Place{Rank: g.local, Size: g.width(), Root: root, Chunk: at.Chunk, inner: true}
}

func (g grid) inRail(at Place, root int) Place {
	return Place{Rank: g.host, Size: g.height(), Root: root, Chunk: at.Chunk, inner: true}
}

// RanksPerHost returns the number of ranks of each of several hosts, or 0 unless all have equally many, host by host.
func RanksPerHost(hosts [][]int) int {
	if len(hosts) < 2 {
		return 0
	}
	width := len(hosts[0])
	for h, ranks := range hosts {
		if len(ranks) != width {
			return 0
		}
		for local, rank := range ranks {
			if rank != h*width+local {
				return 0
			}
		}
	}
	return width
}

// checkHosts refuses hosts unless every rank is on exactly one and all have equally many.
func checkHosts(at Place) error {
	seen, count := make([]bool, at.Size), 0
	for h, ranks := range at.Hosts {
		if len(ranks) != len(at.Hosts[0]) || len(ranks) == 0 {
			return fmt.Errorf("%s on host %d and %d on host 0: rails need as many on each",
				coll.Count(len(ranks), "rank"), h, len(at.Hosts[0]))
		}
		for _, rank := range ranks {
			if rank < 0 || rank >= at.Size || seen[rank] {
				return fmt.Errorf("rank %d on host %d is on another one, too, or outside the group of %d", rank, h, at.Size)
			}
			seen[rank] = true
			count++
		}
	}
	if len(at.Hosts) > 0 && count < at.Size {
		return fmt.Errorf("rank %d is on no host", slices.Index(seen, false))
	}
	return nil
}
