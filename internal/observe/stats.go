package observe

import (
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// GroupStats holds the counters of a group. It is the result of get_stats().
type GroupStats struct {
	Group    string `json:"group"`
	Rank     int    `json:"rank"`
	Size     int    `json:"size"`
	Sequence uint64 `json:"sequence"` // collectives that this rank has issued, in both lanes

	AllReduceCount uint64  `json:"all_reduce_count"`
	TotalBytes     uint64  `json:"total_bytes"`
	AverageMS      float64 `json:"avg_latency_ms"`

	Ops      map[string]OpStats      `json:"ops"`
	Rows     []StatRow               `json:"rows"`
	Lanes    []LaneStats             `json:"lanes"`    // those that are open; the totals of the group are sums over them
	Fast     uint64                  `json:"fast"`     // operations that did not enter Go
	Fused    uint64                  `json:"fused"`    // operations of users that shared a collective with others
	Blocked  uint64                  `json:"blocked"`  // waits that outlasted spinning
	Sleeps   uint64                  `json:"sleeps"`   // how often such waits slept
	Programs int                     `json:"programs"` // programs in the cache
	Captured uint64                  `json:"captured"` // operations that are parts of graphs; they are counted nowhere else, nor are launches
	Classes  map[string][]ClassStats `json:"classes"`
	Failure  *coll.Failure           `json:"failure,omitempty"`
}

// LaneStats holds the counters of one lane.
type LaneStats struct {
	Lane     string `json:"lane"`     // host or device
	Device   string `json:"device"`   // types of the devices of this rank's operations, joined by "+"; "cpu" on the host lane
	Engine   string `json:"engine"`   // of the lane; rows have the one that carried operations out
	Sequence uint64 `json:"sequence"` // collectives that this rank has issued
	Blocked  uint64 `json:"blocked"`
	Sleeps   uint64 `json:"sleeps"`
	Programs int    `json:"programs"`
	Captured uint64 `json:"captured"`
}

// OpStats sums up the operations of one kind.
type OpStats struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// StatRow sums up the operations of one lane, kind, type, size class and algorithm. Times are from issue to completion.
type StatRow struct {
	Op        string  `json:"op"`
	Type      string  `json:"dtype"`
	UpTo      *uint64 `json:"up_to"` // bytes, sizes above half of it; null: all sizes (too many rows)
	Algorithm string  `json:"algorithm"`
	Device    string  `json:"device"` // as in LaneStats
	Engine    string  `json:"engine"` // that has carried the operations out
	Transport string  `json:"transport"`
	Count     uint64  `json:"count"`
	Bytes     uint64  `json:"bytes"`
	Fast      uint64  `json:"fast"`
	Fused     uint64  `json:"fused"`
	AverageUS float64 `json:"avg_us"`
	P50US     float64 `json:"p50_us"`
	P99US     float64 `json:"p99_us"`
	LongestUS float64 `json:"max_us"`
	WaitedUS  float64 `json:"wait_us"`     // part of the average spent waiting for peers
	RestUS    float64 `json:"transfer_us"` // rest of the average
	AlgBW     float64 `json:"algbw_gbps"`  // GB/s, as nccl-tests define both
	BusBW     float64 `json:"busbw_gbps"`
}

// ClassStats is the algorithm that one size class of a collective uses.
type ClassStats struct {
	UpTo      uint64 `json:"up_to,omitempty"` // bytes, absent for the last class
	Algorithm string `json:"algorithm"`
	Chunk     int    `json:"chunk"`
}

// Stats returns a description of the group and its counters. Requires: the group is acquired.
func Stats(g Group) GroupStats {
	h := g.Header()
	out := GroupStats{Group: h.Group, Rank: h.Rank, Size: h.Size, Ops: map[string]OpStats{}, Rows: []StatRow{},
		Classes: map[string][]ClassStats{}, Failure: g.Cause()}
	var count uint64
	var total time.Duration
	for _, lane := range g.Lanes() {
		c := lane.Run.Counters()
		one := LaneStats{Lane: laneName(lane.Number), Device: lane.Devices, Engine: lane.Engine, Sequence: lane.Run.Issued(),
			Blocked: c.Blocked, Sleeps: c.Sleeps, Programs: c.Programs, Captured: lane.Captured}
		out.Lanes = append(out.Lanes, one)
		out.Sequence += one.Sequence
		out.Blocked += one.Blocked
		out.Sleeps += one.Sleeps
		out.Programs += one.Programs
		out.Captured += one.Captured
		for _, s := range lane.Run.Stats() {
			if s.Count == 0 { // the first operation of the row is being added right now
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
			row := statRow(s, h.Size)
			row.Device = lane.Devices
			row.Engine, row.Transport = lane.carrier(s)
			out.Rows = append(out.Rows, row)
		}
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

// statName returns the name of the operation that the user called. A sparse all_reduce consists of several collectives of
// type coll.Sparse. Exactly one of them is an all_gather: it counts as the all_reduce.
func statName(s runner.Stat) string {
	if s.Type == coll.Sparse && s.Kind == coll.AllGather {
		return coll.AllReduce.String()
	}
	return s.Kind.String()
}

func statRow(s runner.Stat, ranks int) StatRow {
	n := float64(s.Count)
	average, waited := us(s.Total)/n, min(us(s.Waited), us(s.Total))/n
	row := StatRow{Op: statName(s), Type: s.Type.String(), Algorithm: s.Algorithm, Count: s.Count,
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

// busFactors returns the factors of nccl-tests' bandwidths (doc/PERFORMANCE.md there) for an operation whose bytes are those
// of one rank's buffer or block: algbw is the bytes times `all` per second, busbw is algbw times `bus`.
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
