package pgbackend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// Rows tell kinds, types, sizes and algorithms apart, and add up to what was called.
func TestStatsRows(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		for range 3 {
			if f := sum(g, 2); f != nil {
				return f
			}
		}
		for _, n := range []int{3, 4, 1 << 20} {
			if f := sum(g, n); f != nil {
				return f
			}
		}
		b := one(make([]byte, 6))
		if _, f := g.Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Int16}, b, b); f != nil {
			return f
		}
		f := message(g, []coll.Kind{coll.Send, coll.Recv}[g.rank], 1-g.rank, 0, make([]byte, 100))
		return asError(f)
	})
	for _, g := range w.groups {
		s := g.stats()
		got := []string{}
		for _, r := range s.Rows {
			got = append(got, fmt.Sprintf("%s %s up to %d %s %s: %d, %d bytes", r.Op, r.Type, *r.UpTo, r.Algorithm, r.Transport, r.Count, r.Bytes))
			if r.AverageUS <= 0 || r.P50US <= 0 || r.P99US < r.P50US || r.LongestUS < r.P99US || r.WaitedUS < 0 || r.RestUS < 0 ||
				r.WaitedUS+r.RestUS-r.AverageUS > 1e-9*r.AverageUS || r.AverageUS > r.LongestUS || r.AlgBW <= 0 || r.BusBW <= 0 {
				t.Errorf("times that cannot be: %+v", r)
			}
		}
		slices.Sort(got)
		want := []string{
			"all_reduce float32 up to 16 one_shot shm: 2, 28 bytes",
			"all_reduce float32 up to 4194304 two_shot shm: 1, 4194304 bytes",
			"all_reduce float32 up to 8 one_shot shm: 3, 24 bytes",
			"broadcast int16 up to 8 one_shot shm: 1, 6 bytes",
			[]string{"send", "recv"}[g.rank] + " uint8 up to 128  shm: 1, 100 bytes",
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("rank %d:\n%s\nexpected\n%s", g.rank, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if s.AllReduceCount != 6 || s.TotalBytes != 28+4194304+24+6+100 || s.AverageMS <= 0 {
			t.Errorf("%d all_reduces, %d bytes, %v ms", s.AllReduceCount, s.TotalBytes, s.AverageMS)
		}
	}
}

// A rank that comes late makes the others wait, and they say so.
func TestStatsTellWaitingFromTheRest(t *testing.T) {
	w := newWorld(t, 2)
	const late, rounds = 30 * time.Millisecond, 5
	var told []string
	for round := range rounds { // a rank that the system holds up has much rest, so one round of a few counts
		elements := 1 << (10 + round) // a row of its own
		w.each(func(g *Group) error {
			if g.rank == 1 {
				awaitAsleep(w.groups[0], uint64(round+1))
				time.Sleep(late)
			}
			return asError(sum(g, elements))
		})
		rows := w.groups[0].stats().Rows
		i := slices.IndexFunc(rows, func(r statRow) bool { return *r.UpTo == uint64(4*elements) })
		if i < 0 || rows[i].WaitedUS < us(late)/2 {
			t.Fatalf("round %d: row %d of %+v", round, i, rows)
		}
		if rows[i].WaitedUS >= rows[i].RestUS {
			return
		}
		told = append(told, fmt.Sprintf("%v us of %v", rows[i].WaitedUS, rows[i].AverageUS))
	}
	t.Errorf("it waited %v", told)
}

// awaitAsleep returns when the rank sleeps inside its collective of that number.
func awaitAsleep(g *Group, sequence uint64) {
	for g.Sequence() < sequence {
		time.Sleep(time.Millisecond)
	}
	for before := g.run.Counters().Sleeps; g.run.Counters().Sleeps == before; {
		time.Sleep(time.Millisecond)
	}
}

func TestQuantiles(t *testing.T) {
	h := runner.Histogram{Begin: []float64{0, 1, 2, 4}, Counts: []uint64{0, 98, 1, 1}}
	for q, want := range map[float64]time.Duration{0.5: time.Second + time.Second*50/98, 0.98: 2 * time.Second, 0.99: 4 * time.Second, 1: 4 * time.Second} {
		if got := h.Quantile(q); (got - want).Abs() > time.Microsecond {
			t.Errorf("quantile %v is %v, expected %v", q, got, want)
		}
	}
	if got := (runner.Histogram{Begin: []float64{0, 1}, Counts: []uint64{0, 0}}).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// line finds the only line of a metric that has all parts.
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
	w := newWorldWith(t, 2, opTimeout, options{"metrics_file": path, "metrics_every": "1000"})
	w.each(func(g *Group) error {
		g.Describe(`of a "test"`)
		for range 4 {
			if f := sum(g, 2); f != nil {
				return f
			}
		}
		return nil
	})
	group := label("group", t.Name())
	text := string(Get().Metrics())
	for _, family := range []string{"collectives_total", "bytes_total", "latency_seconds", "peer_wait_seconds_total"} {
		line(t, text, "# TYPE sagecomm_"+family+" ")
	}
	// Both ranks are groups of this process here, so every sample is there twice; a real process has one.
	if n := strings.Count(text, "sagecomm_collectives_total{"+group+`,op="all_reduce",algo="one_shot",transport="shm"} 4`); n != 2 {
		t.Errorf("%d times in\n%s", n, text)
	}
	if n := strings.Count(text, `_bucket{`+group+`,op="all_reduce",algo="one_shot",transport="shm",le="+Inf"} 4`); n != 2 {
		t.Errorf("%d times in\n%s", n, text)
	}
	if !strings.Contains(text, `desc="of a \"test\"",rank="0"`) {
		t.Error(text)
	}
	w.groups[0].Abort("the test is over")
	if text := string(Get().Metrics()); !strings.Contains(text, "sagecomm_errors_total{"+group+`,kind="aborted"} 1`) {
		t.Error(text)
	}
	w.destroy()
	last, err := os.ReadFile(expand(path, 0))
	if err != nil || !strings.Contains(string(last), "sagecomm_collectives_total{"+group) {
		t.Errorf("at the end the file holds %q, %v", last, err)
	}
}

func TestStatusOfAHang(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error { return asError(sum(g, 2)) })
	work, f := sumAsync(w.groups[0], 2)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	var seen processStatus
	if err := json.Unmarshal(Get().Status(), &seen); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(seen.Groups, func(g groupStatus) bool { return g.Group == t.Name() && g.Rank == 1 })
	if i < 0 || seen.PID != os.Getpid() {
		t.Fatalf("%+v", seen)
	}
	// As rank 1 sees it, who has nothing to do with rank 0's call.
	states := []string{}
	for _, r := range seen.Groups[i].Ranks {
		states = append(states, fmt.Sprintf("%s %s %d", r.State, r.Op, r.Issued))
		if r.Since == 0 || r.PID != os.Getpid() || r.Host == "" {
			t.Errorf("%+v", r)
		}
	}
	want := []string{"in all_reduce #2 (float32, 2 elements) 2", "done all_reduce #1 (float32, 2 elements) 1", "done all_reduce #1 (float32, 2 elements) 1"}
	for i, state := range states {
		if strings.Replace(state, "SUM, ", "", 1) != want[i] {
			t.Errorf("rank %d is %q, expected %q", i, state, want[i])
		}
	}
	w.groups[1].Abort("the test is over")
	if f := finish(work); f == nil {
		t.Error("it succeeded")
	}
}

func TestTimeline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace-%r.json")
	w := newWorldWith(t, 2, opTimeout, options{"trace": path})
	const ops = 20
	w.each(func(g *Group) error {
		for range ops {
			if f := sum(g, 1<<18); f != nil {
				return f
			}
		}
		work, f := sumAsync(g, 2)
		if f == nil {
			f = finish(work)
			work.Release()
		}
		return asError(f)
	})
	w.destroy()
	// Of the first of the two that asked, with a number behind it if the process has had one before.
	files, err := filepath.Glob(strings.Replace(path, "%r", "*", 1) + "*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var events []traceEvent
	if err := json.Unmarshal(text, &events); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	ends := map[int]float64{}
	slices.SortStableFunc(events, func(a, b traceEvent) int {
		if a.Begin < b.Begin {
			return -1
		}
		return 1
	})
	for _, e := range events {
		count[e.Phase+" "+e.Name]++
		if e.Phase == "M" && e.Name == "end" && e.Args["dropped"] != 0.0 {
			t.Errorf("%v events were dropped", e.Args["dropped"])
		}
		if e.Phase == "X" && e.Name != "wait" { // those lie inside others
			if *e.Duration < 0 || e.Begin < ends[e.Thread]-1 {
				t.Fatalf("%+v begins before the one before it ends, at %v", e, ends[e.Thread])
			}
			ends[e.Thread] = e.Begin + *e.Duration
		}
	}
	// Both ranks are in it, being of one process here.
	if count["b all_reduce"] != 2*(ops+1) || count["e all_reduce"] != 2*(ops+1) || count["b queue"] < 2 || count["X publish"] < 2*ops*4 ||
		count["X reduce"] < 2*ops*4 || count["X collect"] < 2*ops*4 || count["M thread_name"] < 2 || count["M process_name"] != 1 {
		t.Errorf("%v", count)
	}
}

// Where files go may hang: here a pipe that nobody reads.
func TestTheEndDoesNotWaitForFiles(t *testing.T) {
	old := exitTimeout
	exitTimeout = 10 * time.Millisecond
	defer func() { exitTimeout = old }()
	path := filepath.Join(t.TempDir(), "pipe")
	pipe := path
	if begun := Get().timeline.files; begun > 0 {
		pipe = fmt.Sprintf("%s.%d", path, begun+1)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, 1, opTimeout, options{"trace": path})
	if f := sum(w.groups[0], 2); f != nil {
		t.Fatal(f)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.groups[0].Destroy() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0) // lets the writer go
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
}

func TestWhereDumpsGo(t *testing.T) {
	for _, c := range []struct {
		option, want string
		environ      []string
	}{
		{"", "", nil},
		{"", "/a/rank_", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_"}},
		{"", "/b", []string{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/b", "TORCH_FR_DUMP_ON_TIMEOUT=1"}},
		{"", "", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_", "TORCH_NCCL_DUMP_ON_TIMEOUT=0"}},
		{"none", "", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_"}},
		{"/c/", "/c/", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_", "TORCH_FR_DUMP_ON_TIMEOUT=0"}},
	} {
		s, err := env.Resolve(nil, map[string]string{"fr_dump": c.option})
		if err != nil {
			t.Fatal(err)
		}
		if got := dumpPrefix(s, c.environ); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestDumpAtASignal(t *testing.T) {
	dir := t.TempDir()
	w := newWorldWith(t, 1, opTimeout, options{"fr_dump": dir + "/rank_", "fr_signal": "usr2"})
	if f := sum(w.groups[0], 2); f != nil {
		t.Fatal(f)
	}
	if err := unix.Kill(os.Getpid(), unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(dir + "/rank_0"); err == nil {
			if !strings.Contains(string(text), "sagecomm:all_reduce") {
				t.Errorf("%q", text)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no dump")
		}
	}
	if left, _ := filepath.Glob(dir + "/.*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDumpWithoutAPlace(t *testing.T) {
	w := newWorld(t, 1)
	if err := Get().Dump(""); err == nil || !strings.Contains(err.Error(), "SAGECOMM_FR_DUMP") {
		t.Errorf("%v", err)
	}
	if err := Get().Dump(filepath.Join(t.TempDir(), "missing", "rank_")); err == nil {
		t.Error("a directory that is not there is no error")
	}
	w.destroy()
	if err := Get().Dump(filepath.Join(t.TempDir(), "rank_")); err == nil || !strings.Contains(err.Error(), "no group") {
		t.Errorf("%v", err)
	}
}

// What one rank records, stacks included, another one reads.
func TestFlightsOfAPeer(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, options{"fr_stacks": "on"})
	stack := "train.py\t12\tstep\nmain.py\t3\t<module>\n"
	w.each(func(g *Group) error {
		if !g.RecordsStacks() {
			return fmt.Errorf("no stacks")
		}
		first, again, other := g.Stack(stack), g.Stack(stack), g.Stack("x\t1\ty\n")
		if first == 0 || first != again || other == first || other == 0 || g.Stack("") != 0 {
			return fmt.Errorf("numbers %d, %d, %d", first, again, other)
		}
		b := one(make([]byte, 8))
		_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Stack: uint64(first)}, b, b)
		return asError(f)
	})
	for _, g := range w.groups {
		for rank := range 2 {
			log := g.run.Recorder(rank).Flights()
			if len(log.Flights) != 1 || log.Flights[0].Stack != stack || log.Completed != 1 || log.Flights[0].Started.IsZero() {
				t.Errorf("rank %d sees of rank %d: %+v", g.rank, rank, log)
			}
			frames := g.flightHeader().with(1, log).Entries[0].Get("frames")
			text, err := json.Marshal(frames)
			if want := `[{"name":"step","filename":"train.py","line":12},{"name":"\u003cmodule\u003e","filename":"main.py","line":3}]`; err != nil || string(text) != want {
				t.Errorf("frames %s, %v", text, err)
			}
		}
	}
	// There is an end to the room.
	g, n := w.groups[0], 0
	for ; g.Stack(fmt.Sprintf("%1000d\t1\tf\n", n)) != 0; n++ {
		if n > 1000 {
			t.Fatal("it has no end")
		}
	}
	if n < 400 || g.Stack(stack) == 0 {
		t.Errorf("room for %d stacks", n)
	}
}

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log-%p-%r-%%")
	w := newWorldWith(t, 1, opTimeout, options{"debug": "INFO", "debug_file": path})
	defer func() { output.to = nil }()
	w.destroy()
	text, err := os.ReadFile(strings.NewReplacer("%%", "%", "%p", fmt.Sprint(os.Getpid()), "%r", "0").Replace(path))
	if err != nil || !strings.Contains(string(text), fmt.Sprintf(":%d] group %q rank 0: ", os.Getpid(), t.Name())) || !strings.Contains(string(text), "sagecomm INFO [") {
		t.Errorf("%q, %v", text, err)
	}
}
