package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// summary counts the outcomes of cells and collects the times of all that has a bound.
type summary struct {
	run    map[string]int // by fault
	failed []string
	times  map[string][]int64
	bounds map[string]int64
}

func newSummary() *summary {
	return &summary{run: map[string]int{}, times: map[string][]int64{}, bounds: map[string]int64{}}
}

func (s *summary) add(t *trial) {
	s.run[t.fault]++
	if len(t.notes) > 0 {
		s.failed = append(s.failed, t.cell.String())
	}
	for _, m := range t.timings {
		s.times[m.what] = append(s.times[m.what], m.took)
		s.bounds[m.what] = m.bound
	}
}

func (s *summary) total() (n int) {
	for _, of := range s.run {
		n += of
	}
	return n
}

func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "%d cells, %d failed:", s.total(), len(s.failed))
	for _, fault := range slices.Sorted(maps.Keys(s.run)) {
		fmt.Fprintf(out, " %s %d", fault, s.run[fault])
	}
	fmt.Fprintln(out)
	s.printTimes(out)
	for _, name := range s.failed {
		fmt.Fprintf(out, "FAILED %s\n", name)
	}
}

func (s *summary) printTimes(out io.Writer) {
	fmt.Fprintf(out, "%-44s %8s %10s %10s %10s %10s %6s\n", "what took how long", "count", "median", "p99", "max", "bound", "beyond")
	for _, what := range slices.Sorted(maps.Keys(s.times)) {
		list := slices.Sorted(slices.Values(s.times[what]))
		at := func(part float64) string { return short(list[min(len(list)-1, int(part*float64(len(list))))]) }
		beyond := len(list) - sort.Search(len(list), func(i int) bool { return list[i] > s.bounds[what] })
		fmt.Fprintf(out, "%-44s %8d %10s %10s %10s %10s %6d\n", what, len(list), at(0.5), at(0.99), short(list[len(list)-1]), short(s.bounds[what]), beyond)
	}
}

func short(ns int64) string { return fmt.Sprintf("%.1f ms", float64(ns)/1e6) }

// tell prints the errors of a cell, the command that runs it again, and the orders and answers of every rank.
func (t *trial) tell(out io.Writer, seed uint64, said []string) {
	fmt.Fprintf(out, "FAILED %v\n  again: go run ./tests/faults -seed %d -match '^%v$'\n  culprit: rank %d, root %d, async %v, cold %v, memory by %s\n",
		t.cell, seed, t.cell, t.culprit, t.root, t.async, t.cold, t.attach)
	for _, note := range t.notes {
		fmt.Fprintln(out, "  -", note)
	}
	for _, text := range said {
		fmt.Fprintln(out, text)
	}
}

// sayings returns the orders and answers of each rank of a trial.
func (t *trial) sayings(ranks []*process) (list []string) {
	for rank, r := range ranks {
		list = append(list, fmt.Sprintf("  rank %d, pid %d:\n    %s", rank, r.pid, r.tail()))
	}
	return list
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Second) }

func skippedText(skipped map[string]int) string {
	var b strings.Builder
	total := 0
	for _, n := range skipped {
		total += n
	}
	fmt.Fprintf(&b, "%d combinations without a meaning are left out:\n", total)
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(&b, "%6d  %s\n", skipped[why], why)
	}
	return b.String()
}
