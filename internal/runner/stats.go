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

// Counters holds the counts of a group that do not belong to one kind of operation.
type Counters struct {
	Sleeps, Blocked uint64
	Programs        int
}

// Counters returns the group's counters.
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
	// Class c contains lengths above 2^(c-1) and up to 2^c bytes, class 0 lengths of at most one byte. The row of class -1
	// sums up operations of all types and sizes for which there was no free row.
	Class    int
	Count    uint64
	Bytes    uint64        // bytes that this rank contributed, or received in a recv
	Fast     uint64        // operations that did not enter Go
	Fused    uint64        // operations of users that shared a collective with others
	Total    time.Duration // from issue to completion
	Waited   time.Duration // part of Total that went into waiting for peers
	Longest  time.Duration // rounded up: never below the average
	Duration Histogram
}

// Histogram counts durations. Bucket i is from Begin[i] to Begin[i+1], the last one without end.
type Histogram struct {
	Begin  []float64 // seconds
	Counts []uint64
}

// Quantile estimates the duration that the fraction q of all durations does not exceed. The error is at most the width of a
// bucket, a quarter of the bucket's beginning.
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

// Stats returns the group's statistics. Operations go on meanwhile.
// Requires: the group is not closed before Stats returns.
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

// algorithms numbers the names of algorithms: programs and rows of statistics carry the number.
var algorithms struct {
	sync.Mutex
	names []string // by number - 1
}

// algorithmNumber returns the number of a name, which stays the same while the process lives, or 0 if there are too many names.
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
