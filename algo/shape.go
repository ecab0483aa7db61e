package algo

import (
	"fmt"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// MaxSize is the largest number of ranks of a group, plan.MaxSize that of ranks that share memory.
const MaxSize = 1024

// Shape describes how the ranks of a group are spread over hosts. It is the same on all ranks.
type Shape struct {
	Size int
	// Hosts lists the ranks of each host. Nil means that they are all on one host.
	Hosts [][]int
	// Apart reports that hosts share no memory. Messages between them then go through a network, and Hosts lists all of them.
	Apart bool
}

// sharesMemory reports whether all ranks share memory.
func (s Shape) sharesMemory() bool { return !s.Apart }

// HasLongMessages reports whether the channels of the group take messages of plan.LongMessageBytes: in small groups whose ranks share no memory. Each
// rank reserves memory for such messages to each other one, and ranks that share memory pass them on more slowly than short ones.
func (s Shape) HasLongMessages() bool {
	return s.Apart && len(s.Hosts) == s.Size && s.Size <= mostLong
}

const mostLong = 4

// messageBytes returns the length of the longest message of a channel.
func (s Shape) messageBytes() int {
	if s.HasLongMessages() {
		return plan.LongMessageBytes
	}
	return plan.MessageBytes
}

// HostCount returns the number of hosts.
func (s Shape) HostCount() int { return max(1, len(s.Hosts)) }

// ValidSize refuses a number of ranks that no group can have.
func ValidSize(ranks int) error {
	if ranks < 1 || ranks > MaxSize {
		return fmt.Errorf("a group of %d ranks: expected 1 to %d", ranks, MaxSize)
	}
	return nil
}

// validate refuses a shape whose hosts do not have every rank exactly once.
func (s Shape) validate() error {
	if err := ValidSize(s.Size); err != nil {
		return err
	}
	if !s.Apart && s.Size > plan.MaxSize {
		return fmt.Errorf("a group of %d ranks that share memory: expected at most %d", s.Size, plan.MaxSize)
	}
	if s.Apart && len(s.Hosts) < 2 {
		return fmt.Errorf("a group whose hosts share no memory has %d lists of their ranks: expected one for each of several hosts", len(s.Hosts))
	}
	if s.Hosts == nil {
		return nil
	}
	seen, count := make([]bool, s.Size), 0
	for host, ranks := range s.Hosts {
		for _, rank := range ranks {
			if rank < 0 || rank >= s.Size || seen[rank] {
				return fmt.Errorf("rank %d on host %d: it is on another one, too, or outside the group of %d", rank, host, s.Size)
			}
			seen[rank] = true
			count++
		}
	}
	if count < s.Size {
		return fmt.Errorf("%d of %d ranks are on no host", s.Size-count, s.Size)
	}
	return nil
}

// rails reports whether there are several hosts with equally many ranks, which hierarchical algorithms need.
func (s Shape) rails() bool {
	for _, ranks := range s.Hosts {
		if len(ranks) != len(s.Hosts[0]) || len(ranks) == 0 {
			return false
		}
	}
	return len(s.Hosts) > 1
}

// place returns where a sendrecv plan of the group runs.
func (s Shape) place(algorithm string, rank, root, chunk int) sendrecv.Place {
	at := sendrecv.Place{Rank: rank, Size: s.Size, Root: root, Chunk: chunk}
	if algorithm == sendrecv.Hierarchical {
		at.Hosts = s.Hosts
	}
	return at
}

// costs returns what the group's messages cost.
func (s Shape) costs(p Params) cost.Costs {
	c := cost.Costs{Links: []cost.Link{p.Channel}, Reduce: p.Reduce, Copy: p.Copy, Capacity: plan.ChannelPlaces}
	if s.sharesMemory() {
		return c
	}
	host := make([]int, s.Size)
	for h, ranks := range s.Hosts {
		for _, rank := range ranks {
			host[rank] = h
		}
	}
	c.Links, c.RanksPerHost = append(c.Links, p.Network), sendrecv.RanksPerHost(s.Hosts)
	c.Class = func(from, to int) int {
		if host[from] == host[to] {
			return 0
		}
		return 1
	}
	return c
}

// oneClass reports whether a kind has one class for all lengths. An all_to_all has: a rank knows the lengths of its own
// blocks only, so ranks could choose differently.
func oneClass(kind coll.Kind) bool { return kind == coll.AllToAll }

// Algorithms returns the names of all algorithms of a kind in a group of several ranks: slot plans, then sendrecv plans.
func Algorithms(kind coll.Kind) []string {
	return append(shmplan.Algorithms(kind), sendrecv.Algorithms(kind)...)
}
