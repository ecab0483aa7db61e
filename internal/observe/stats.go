package observe

import (
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// GroupStats is what a group has counted: the answer of get_stats().
type GroupStats struct {
	Group    string `json:"group"`
	Rank     int    `json:"rank"`
	Size     int    `json:"size"`
	Sequence uint64 `json:"sequence"`

	AllReduceCount uint64  `json:"all_reduce_count"`
	TotalBytes     uint64  `json:"total_bytes"`
	AverageMS      float64 `json:"avg_latency_ms"`

	Ops      map[string]OpStats      `json:"ops"`
	Rows     []StatRow               `json:"rows"`
	Fast     uint64                  `json:"fast"`     // operations that did not enter Go
	Fused    uint64                  `json:"fused"`    // operations of users that were packed into others
	Blocked  uint64                  `json:"blocked"`  // waits that outlasted spinning
	Sleeps   uint64                  `json:"sleeps"`   // of those, turns of sleep
	Programs int                     `json:"programs"` // in the cache
	Classes  map[string][]ClassStats `json:"classes"`
	Failure  *coll.Failure           `json:"failure,omitempty"`
}

// OpStats is what operations of one kind came to.
type OpStats struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// StatRow is what operations of one kind, type, size class and algorithm came to. Times are from issue to completion.
type StatRow struct {
	Op        string  `json:"op"`
	Type      string  `json:"dtype"`
	UpTo      *uint64 `json:"up_to"` // bytes, more than half of that; null: of all sizes, where there were too many rows
	Algorithm string  `json:"algorithm"`
	Transport string  `json:"transport"`
	Count     uint64  `json:"count"`
	Bytes     uint64  `json:"bytes"`
	Fast      uint64  `json:"fast"`
	Fused     uint64  `json:"fused"`
	AverageUS float64 `json:"avg_us"`
	P50US     float64 `json:"p50_us"`
	P99US     float64 `json:"p99_us"`
	LongestUS float64 `json:"max_us"`
	WaitedUS  float64 `json:"wait_us"`     // of the average, waiting for peers
	RestUS    float64 `json:"transfer_us"` // and everything else
	AlgBW     float64 `json:"algbw_gbps"`  // GB/s, as nccl-tests define both
	BusBW     float64 `json:"busbw_gbps"`
}

// ClassStats is one size class of a collective.
type ClassStats struct {
	UpTo      uint64 `json:"up_to,omitempty"` // bytes, absent for the last class
	Algorithm string `json:"algorithm"`
	Chunk     int    `json:"chunk"`
}

// transport is the way that data takes in groups of one host.
const transport = "shm"

// Stats describes the group and what it has counted. Requires: the group is acquired.
func Stats(g Group) GroupStats {
	h, run := g.Header(), g.Run()
	c := run.Counters()
	out := GroupStats{Group: h.Group, Rank: h.Rank, Size: h.Size, Sequence: run.Sequence(), Ops: map[string]OpStats{},
		Rows: []StatRow{}, Blocked: c.Blocked, Sleeps: c.Sleeps, Programs: c.Programs, Classes: map[string][]ClassStats{},
		Failure: g.Cause()}
	var count uint64
	var total time.Duration
	for _, s := range run.Stats() {
		if s.Count == 0 { // its first operation is just being added
			continue
		}
		name := statName(s)
		op := out.Ops[name]
		op.Count += s.Count
		op.Bytes += s.Bytes
		out.Ops[name] = op
		out.TotalBytes += s.Bytes
		out.Fast += s.Fast
		out.Fused += s.Fused
		count += s.Count
		total += s.Total
		out.Rows = append(out.Rows, statRow(s, h.Size))
	}
	out.AllReduceCount = out.Ops[coll.AllReduce.String()].Count
	if count > 0 {
		out.AverageMS = total.Seconds() * 1e3 / float64(count)
	}
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		for _, class := range g.Classes(kind) {
			row := ClassStats{class.UpTo, class.Algorithm, class.Chunk}
			if class.UpTo == algo.NoLimit {
				row.UpTo = 0
			}
			out.Classes[kind.String()] = append(out.Classes[kind.String()], row)
		}
	}
	return out
}

// statName is what the user called. What sparse operations are made of is told apart by its type: it begins with an
// all_gather, and there is one for each of them.
func statName(s runner.Stat) string {
	if s.Type == coll.Sparse && s.Kind == coll.AllGather {
		return coll.AllReduce.String()
	}
	return s.Kind.String()
}

func statRow(s runner.Stat, ranks int) StatRow {
	n := float64(s.Count)
	average, waited := us(s.Total)/n, min(us(s.Waited), us(s.Total))/n
	row := StatRow{Op: statName(s), Type: s.Type.String(), Algorithm: s.Algorithm, Transport: transport, Count: s.Count,
		Bytes: s.Bytes, Fast: s.Fast, Fused: s.Fused, AverageUS: average, P50US: us(min(s.Duration.Quantile(0.5), s.Longest)),
		P99US: us(min(s.Duration.Quantile(0.99), s.Longest)), LongestUS: us(s.Longest), WaitedUS: waited, RestUS: average - waited}
	switch {
	case s.Class >= 0 && s.Class < 64:
		upTo := uint64(1) << s.Class
		row.UpTo = &upTo
	case s.Class < 0:
		row.Type = "any"
	}
	if s.Total > 0 {
		all, bus := busFactors(s.Kind, ranks)
		row.AlgBW = float64(s.Bytes) * all / s.Total.Seconds() / 1e9
		row.BusBW = row.AlgBW * bus
	}
	return row
}

func us(d time.Duration) float64 { return float64(d) / 1e3 }

// busFactors are, for an operation that counts one rank's buffer or block, how many of these make the size that
// nccl-tests' algbw is of, and what busbw is of that (doc/PERFORMANCE.md there).
func busFactors(kind coll.Kind, ranks int) (all, bus float64) {
	n := float64(ranks)
	switch kind {
	case coll.AllReduce:
		return 1, 2 * (n - 1) / n
	case coll.AllGather, coll.ReduceScatter, coll.Gather, coll.Scatter:
		return n, (n - 1) / n
	case coll.AllToAll:
		return 1, (n - 1) / n
	default:
		return 1, 1
	}
}
