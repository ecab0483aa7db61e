package observe_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

// line returns the only line of the text that contains all parts.
func line(t *testing.T, text string, parts ...string) string {
	t.Helper()
	var found []string
	for l := range strings.Lines(text) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(l, p) }) {
			found = append(found, strings.TrimSpace(l))
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d lines with %q in\n%s", len(found), parts, text)
	}
	return found[0]
}

func TestMetrics(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics-%p.prom")
	w := newWorld(t, 2, options{"metrics_file": path, "metrics_every": "1000"})
	w.each(func(g *pgbackend.Group) error {
		g.Describe(`of a "test"`)
		for range 4 {
			if f := sum(g, 2); f != nil {
				return f
			}
		}
		return nil
	})
	group := observe.Label("group", t.Name())
	text := string(observers().Metrics())
	for _, family := range []string{"collectives_total", "bytes_total", "latency_seconds", "peer_wait_seconds_total"} {
		line(t, text, "# TYPE sagecomm_"+family+" ")
	}
	// Both ranks are groups of this process, so every sample appears twice. A real process has one rank per group.
	if n := strings.Count(text, "sagecomm_collectives_total{"+group+`,op="all_reduce",algo="one_shot",device="cpu",engine="host",transport="shm"} 4`); n != 2 {
		t.Errorf("%d times in\n%s", n, text)
	}
	if n := strings.Count(text, `_bucket{`+group+`,op="all_reduce",algo="one_shot",device="cpu",engine="host",transport="shm",le="+Inf"} 4`); n != 2 {
		t.Errorf("%d times in\n%s", n, text)
	}
	if !strings.Contains(text, `desc="of a \"test\"",rank="0"`) {
		t.Error(text)
	}
	w.groups[0].Abort("the test is over")
	if text := string(observers().Metrics()); !strings.Contains(text, "sagecomm_errors_total{"+group+`,kind="aborted"} 1`) {
		t.Error(text)
	}
	w.destroy()
	last, err := os.ReadFile(observe.Expand(path, 0))
	if err != nil || !strings.Contains(string(last), "sagecomm_collectives_total{"+group) {
		t.Errorf("at the end the file holds %q, %v", last, err)
	}
}
