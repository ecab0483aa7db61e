package runner

/*
#include "runner.h"
*/
import "C"

import (
	"math"
	"sync"
	"time"

	"sagecomm/internal/coll"
)

// Counters holds what a group counts besides operations.
type Counters struct {
	Sleeps, Blocked uint64
	Programs        int
}

// Counters returns the counters of the group.
func (g *Group) Counters() Counters {
	var c C.scr_counters
	C.scr_group_counters(g.c, &c)
	return Counters{Sleeps: uint64(c.sleeps), Blocked: uint64(c.blocked), Programs: int(C.scr_cache_entries(g.c))}
}

// Stat sums up the operations of one kind, type, size class and algorithm that succeeded.
type Stat struct {
	Kind      coll.Kind
	Type      coll.DataType // Sparse: collectives inside a sparse all_reduce
	Algorithm string        // empty for p2p operations
	// Class c has the lengths above 2^(c-1) and up to 2^c bytes; class 0 has those of at most 1 byte. Class -1 has the
	// operations of all types and sizes for which there was no row left.
	Class    int
	Count    uint64
	Bytes    uint64        // that this rank contributed, or received in a recv
	Fast     uint64        // operations that did not enter Go
	Fused    uint64        // operations of users that were packed into others
	Total    time.Duration // from issue to completion
	Waited   time.Duration // the part of Total in which it waited for peers
	Longest  time.Duration // rounded up: never below the average
	Duration Histogram
}

// Histogram counts durations. Bucket i reaches from Begin[i] to Begin[i+1]; the last one has no upper bound.
type Histogram struct {
	Begin  []float64 // seconds
	Counts []uint64
}

// Quantile estimates the duration that the fraction q of all operations did not exceed. The error is at most the width of a
// bucket, which is a quarter of its lower bound.
func (h Histogram) Quantile(q float64) time.Duration {
	var all uint64
	for _, n := range h.Counts {
		all += n
	}
	if all == 0 {
		return 0
	}
	rank, seen := q*float64(all), 0.0
	for i, n := range h.Counts {
		if n == 0 || seen+float64(n) < rank {
			seen += float64(n)
			continue
		}
		end := h.Begin[i]
		if i+1 < len(h.Begin) {
			end = h.Begin[i+1]
		}
		inside := (rank - seen) / float64(n)
		return time.Duration((h.Begin[i] + inside*(end-h.Begin[i])) * float64(time.Second))
	}
	return time.Duration(h.Begin[len(h.Begin)-1] * float64(time.Second))
}

// Stats returns the statistics of the group. Operations go on meanwhile.
// Requires: the group is not closed before it returns.
func (g *Group) Stats() []Stat {
	raw := make([]C.scr_stat, C.SCR_MOST_STATS)
	raw = raw[:int(C.scr_group_read_stats(g.c, &raw[0], C.SCR_MOST_STATS))]
	list := make([]Stat, len(raw))
	for i := range raw {
		s := &raw[i]
		list[i] = Stat{Kind: coll.Kind(s.kind), Type: coll.DataType(s.dtype), Algorithm: algorithmName(s.algorithm),
			Class: int(s.size_class), Count: uint64(s.count), Bytes: uint64(s.bytes), Fast: uint64(s.fast), Fused: uint64(s.fused),
			Total: time.Duration(s.total_ns), Waited: time.Duration(s.waited_ns), Longest: time.Duration(math.Ceil(float64(s.longest_ns)))}
		h := &list[i].Duration
		h.Begin, h.Counts = make([]float64, len(s.bucket)), make([]uint64, len(s.bucket))
		for b := range s.bucket {
			h.Begin[b] = float64(C.scr_stat_bucket_ns(s, C.uint32_t(b))) / 1e9
			h.Counts[b] = uint64(s.bucket[b])
		}
	}
	return list
}

// Each program carries the number of its algorithm, which selects a row of the statistics.
var algorithms struct {
	sync.Mutex
	names []string // by number - 1
}

// algorithmNumber returns the number of a name, which stays the same as long as the process lives. It returns 0 when there are
// more names than numbers.
func algorithmNumber(name string) C.uint8_t {
	algorithms.Lock()
	defer algorithms.Unlock()
	for i, known := range algorithms.names {
		if known == name {
			return C.uint8_t(i + 1)
		}
	}
	if name == "" || len(algorithms.names) == 255 {
		return 0
	}
	algorithms.names = append(algorithms.names, name)
	return C.uint8_t(len(algorithms.names))
}

func algorithmName(number C.uint8_t) string {
	algorithms.Lock()
	defer algorithms.Unlock()
	if number == 0 || int(number) > len(algorithms.names) {
		return ""
	}
	return algorithms.names[number-1]
}
