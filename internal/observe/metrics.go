package observe

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// Metrics returns the counters of this process's groups in Prometheus's text format, version 0.0.4 (prometheus.io,
// exposition formats). Rows of statistics of one lane that differ only in type and size share one series, to keep their number
// small.
func (o *Observers) Metrics() []byte {
	m := metrics{series: map[string][]string{}}
	groups := o.groups()
	defer releaseAll(groups)
	for _, g := range groups {
		m.add(g)
	}
	return m.text()
}

// latencyBounds holds the upper bounds of the histogram's buckets in seconds, from 1 us to 10 s.
var latencyBounds = []float64{1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10}

// families lists the metrics in the order in which they are written.
var families = []struct{ name, kind, help string }{
	{"sagecomm_group_info", "gauge", "A group of this process; the value is its number of ranks."},
	{"sagecomm_collectives_total", "counter", "Operations that succeeded, collectives and p2p."},
	{"sagecomm_bytes_total", "counter", "Bytes that this rank put into operations that succeeded."},
	{"sagecomm_fused_total", "counter", "Operations of users that shared a collective with others."},
	{"sagecomm_latency_seconds", "histogram", "Time of operations from issue to completion."},
	{"sagecomm_peer_wait_seconds_total", "counter", "Time for which operations waited for peers."},
	{"sagecomm_sleeps_total", "counter", "How often a waiting thread went to sleep."},
	{"sagecomm_errors_total", "counter", "Groups that failed, by kind of their first cause."},
}

type metrics struct{ series map[string][]string }

func (m *metrics) sample(family, suffix, labels string, value any) {
	m.series[family] = append(m.series[family], fmt.Sprintf("%s%s{%s} %v", family, suffix, labels, value))
}

// oneSeries is the sum of the rows of statistics that have the same operation and algorithm.
type oneSeries struct {
	op, algorithm       string
	kind                coll.Kind // of one of the rows
	count, bytes, fused uint64
	total, waited       time.Duration
	buckets             []uint64 // by latencyBounds, not cumulated; the last counts longer times
}

func (m *metrics) add(g Group) {
	h := g.Header()
	group := label("group", h.Group)
	m.sample("sagecomm_group_info", "", strings.Join([]string{group, label("desc", h.Description), label("rank", strconv.Itoa(h.Rank)),
		label("global_rank", strconv.Itoa(h.GlobalRank(h.Rank))), label("host", bootstrap.HostName()), label("pid", strconv.Itoa(os.Getpid()))}, ","), h.Size)
	var sleeps uint64
	for _, lane := range g.Lanes() {
		sleeps += lane.Run.Counters().Sleeps
		m.addLane(group, lane)
	}
	m.sample("sagecomm_sleeps_total", "", group, sleeps)
	if f := g.Cause(); f != nil {
		m.sample("sagecomm_errors_total", "", group+","+label("kind", f.Status.String()), 1)
	}
}

// addLane adds the series of one lane of a group, whose label is given.
func (m *metrics) addLane(group string, lane Lane) {
	for _, s := range sumUp(lane.Run.Stats()) {
		engine, transport := lane.carrier(runner.Stat{Kind: s.kind, Algorithm: s.algorithm})
		labels := strings.Join([]string{group, label("op", s.op), label("algo", s.algorithm), label("device", lane.Devices),
			label("engine", engine), label("transport", transport)}, ",")
		m.sample("sagecomm_collectives_total", "", labels, s.count)
		m.sample("sagecomm_bytes_total", "", labels, s.bytes)
		m.sample("sagecomm_fused_total", "", labels, s.fused)
		var below uint64
		for i, n := range s.buckets {
			below += n
			bound := "+Inf"
			if i < len(latencyBounds) {
				bound = strconv.FormatFloat(latencyBounds[i], 'g', -1, 64)
			}
			m.sample("sagecomm_latency_seconds", "_bucket", labels+","+label("le", bound), below)
		}
		m.sample("sagecomm_latency_seconds", "_sum", labels, s.total.Seconds())
		m.sample("sagecomm_latency_seconds", "_count", labels, below)
		m.sample("sagecomm_peer_wait_seconds_total", "", labels, s.waited.Seconds())
	}
}

func sumUp(rows []runner.Stat) []*oneSeries {
	var list []*oneSeries
	for _, row := range rows {
		op := statName(row)
		i := slices.IndexFunc(list, func(s *oneSeries) bool { return s.op == op && s.algorithm == row.Algorithm })
		if i < 0 {
			i = len(list)
			list = append(list, &oneSeries{op: op, algorithm: row.Algorithm, kind: row.Kind, buckets: make([]uint64, len(latencyBounds)+1)})
		}
		s := list[i]
		s.count += row.Count
		s.bytes += row.Bytes
		s.fused += row.Fused
		s.total += row.Total
		s.waited += min(row.Waited, row.Total)
		for b, n := range row.Duration.Counts {
			if n > 0 { // the runner's buckets are narrower than the histogram's: the middle of one stands for all of it
				middle := row.Duration.Begin[b] * 1.1
				at, _ := slices.BinarySearch(latencyBounds, middle)
				s.buckets[at] += n
			}
		}
	}
	return list
}

// label returns name="value", with the escapes that the format requires.
func label(name, value string) string {
	return name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

func (m *metrics) text() []byte {
	var b bytes.Buffer
	for _, f := range families {
		if list := m.series[f.name]; len(list) > 0 {
			fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s\n", f.name, f.help, f.name, f.kind, strings.Join(list, "\n"))
		}
	}
	return b.Bytes()
}
