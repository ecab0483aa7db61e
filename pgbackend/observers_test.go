package pgbackend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
)

// Observers show both lanes of a group.

// statusOf returns the status of the group of a rank, as the observers of this process tell it.
func statusOf(t *testing.T, g *Group) observe.GroupStatus {
	t.Helper()
	var seen observe.ProcessStatus
	require.NoError(t, json.Unmarshal(Get().Observers().Status(), &seen))
	i := slices.IndexFunc(seen.Groups, func(s observe.GroupStatus) bool { return s.Group == g.name && s.Rank == g.rank })
	if i < 0 {
		t.Fatalf("group %q of rank %d is not in %+v", g.name, g.rank, seen)
	}
	return seen.Groups[i]
}

// onDevices returns the states of all ranks in the device lane, as a rank sees them.
func onDevices(t *testing.T, g *Group) (states []string) {
	t.Helper()
	for _, r := range statusOf(t, g).Ranks {
		if r.Device == nil {
			states = append(states, "")
			continue
		}
		text := fmt.Sprintf("%s #%d", r.Device.State, r.Device.Issued)
		if r.Device.WaitsFor != nil {
			text += fmt.Sprintf(" for %d", *r.Device.WaitsFor)
		}
		states = append(states, text)
	}
	return states
}

// awaitStates returns when a rank sees these states in the device lane.
func awaitStates(t *testing.T, g *Group, want ...string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(hangAfter); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got = onDevices(t, g); slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("rank %d sees %q, expected %q", g.rank, got, want)
}

func TestStatisticsOfBothLanes(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		for _, sum := range []func(*Group, int) *coll.Failure{sum, sum, deviceSum, sum, deviceSum} {
			if f := sum(g, 10); f != nil {
				return f
			}
		}
		s, err := g.Stats()
		if err != nil {
			return err
		}
		var rows []string
		for _, r := range s.Rows {
			rows = append(rows, fmt.Sprintf("%s on %s by %s over %s: %d of %d bytes", r.Op, r.Device, r.Engine, r.Transport, r.Count, r.Bytes))
		}
		want := []string{"all_reduce on cpu by host over shm: 3 of 120 bytes", "all_reduce on cuda by test over shm: 2 of 80 bytes"}
		if !slices.Equal(rows, want) {
			return fmt.Errorf("%q, expected %q", rows, want)
		}
		if s.Sequence != 5 || s.AllReduceCount != 5 || s.TotalBytes != 200 || s.Ops["all_reduce"] != (observe.OpStats{Count: 5, Bytes: 200}) {
			return fmt.Errorf("totals: %+v", s)
		}
		if n := len(s.Lanes); n != 2 {
			return fmt.Errorf("%d lanes", n)
		}
		host, device := s.Lanes[0], s.Lanes[1]
		if host.Lane != "host" || host.Device != "cpu" || host.Engine != "host" || host.Sequence != 3 ||
			device.Lane != "device" || device.Device != "cuda" || device.Engine != "test" || device.Sequence != 2 {
			return fmt.Errorf("lanes: %+v", s.Lanes)
		}
		if s.Sleeps != host.Sleeps+device.Sleeps || s.Blocked != host.Blocked+device.Blocked || s.Programs != host.Programs+device.Programs {
			return fmt.Errorf("totals that are no sums: %+v", s)
		}
		return nil
	})
	text := string(Get().Observers().Metrics())
	for _, labels := range []string{`device="cpu",engine="host",transport="shm"} 3`, `device="cuda",engine="test",transport="shm"} 2`} {
		series := fmt.Sprintf(`sagecomm_collectives_total{group=%q,op="all_reduce",algo="one_shot",`, t.Name()) + labels + "\n"
		if n := strings.Count(text, series); n != 2 { // both ranks are groups of this process
			t.Errorf("%d times %q in\n%s", n, series, text)
		}
	}
}

// A rank whose stream has not reached an operation is late, and its peers wait for it. A rank that has not used the
// lane sees the same, from the memory of the others.
func TestStatusOfALateStream(t *testing.T) {
	useNewPool(t)
	devices := fakeDevices(t, 3, 1, false)
	w := newWorld(t, 3)
	if got := onDevices(t, w.groups[0]); !slices.Equal(got, []string{"", "", ""}) {
		t.Errorf("before the first operation on a device: %q", got)
	}
	devices[1].hold(true)
	works := make([]deviceWork, 3)
	issue := func(rank int) {
		t.Helper()
		b := one(devices[rank].buffer(40))
		var f *coll.Failure
		if works[rank], f = issueOn(w.groups[rank], devices[rank], coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, b, b); f != nil {
			t.Fatal(f)
		}
	}
	issue(1)
	for _, g := range w.groups {
		awaitStates(t, g, "idle #0", "late #1", "idle #0")
	}
	if s := statusOf(t, w.groups[2]); s.Engine != "staged" || s.Ranks[1].State != "idle" || s.Ranks[1].Device.Op != "all_reduce #1 (float32, SUM, 10 elements)" || s.Ranks[1].Device.Since == 0 {
		t.Errorf("%+v", s)
	}
	issue(0)
	issue(2)
	seen := func(rank int, state string) bool { return onDevices(t, w.groups[0])[rank] == state }
	for deadline := time.Now().Add(hangAfter); !seen(0, "in #1 for 1") || !seen(2, "in #1 for 1"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q", onDevices(t, w.groups[0]))
		}
	}
	if !seen(1, "late #1") {
		t.Errorf("%q", onDevices(t, w.groups[0]))
	}
	devices[1].hold(false)
	for rank := range works {
		if f := works[rank].finish(); f != nil {
			t.Error(f)
		}
	}
	awaitStates(t, w.groups[2], "done #1", "done #1", "done #1")
}

// flightsOf returns the groups of a test in the flight records of this process: lane, name in torch's terms, and
// operations.
func flightsOf(t *testing.T, group string) (list []string) {
	t.Helper()
	text, err := Get().Observers().FlightRecords()
	require.NoError(t, err)
	var answer struct {
		Groups []struct {
			Group, Lane string
			Rank        int
			PG          int64 `json:"pg_id"`
			Config      struct{ Name, Desc string }
			Status      map[string]int64
			Entries     []struct {
				Name  string   `json:"profiling_name"`
				PG    int64    `json:"pg_id"`
				Group []string `json:"process_group"`
				Seq   uint64   `json:"collective_seq_id"`
				State string
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &answer))
	numbers := map[int64]bool{}
	for _, g := range answer.Groups {
		if numbers[g.PG] {
			t.Errorf("two groups have the number %d", g.PG)
		}
		numbers[g.PG] = true
		if g.Group != group {
			continue
		}
		line := fmt.Sprintf("%d %s %s:", g.Rank, g.Lane, strings.TrimPrefix(g.Config.Name, group))
		for _, e := range g.Entries {
			if e.PG != g.PG || e.Group[0] != g.Config.Name || e.Group[1] != g.Config.Desc {
				t.Errorf("an entry of %+v: %+v", g, e)
			}
			line += fmt.Sprintf(" %s %d %s", strings.TrimPrefix(e.Name, "c10d:"), e.Seq, e.State)
		}
		list = append(list, fmt.Sprintf("%s; %d", line, g.Status["last_completed_collective"]))
	}
	slices.Sort(list)
	return list
}

func TestFlightRecordsOfBothLanes(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	want := []string{"0 host : all_reduce 1 completed; 1", "1 host : all_reduce 1 completed; 1"}
	if got := flightsOf(t, t.Name()); !slices.Equal(got, want) {
		t.Errorf("before the device lane is open: %q", got)
	}
	w.each(func(g *Group) error {
		for range 2 {
			if f := deviceSum(g, 10); f != nil {
				return f
			}
		}
		return nil
	})
	want = []string{"0 device /device: all_reduce 1 completed all_reduce 2 completed; 2", want[0],
		"1 device /device: all_reduce 1 completed all_reduce 2 completed; 2", want[1]}
	if got := flightsOf(t, t.Name()); !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
}

// The stack of a caller is in the records of the lane of the operation, also if its text was stored before the lane was
// open.
func TestStacksOfBothLanes(t *testing.T) {
	withDevices(t)
	w := newWorldWith(t, 1, opTimeout, options{"fr_stacks": "on"})
	g := w.groups[0]
	for i, device := range []coll.Device{{}, aDevice, aDevice, {}} {
		text := fmt.Sprintf("train.py\t%d\tstep\n", i)
		if i == 1 {
			text = "train.py\t0\tstep\n" // known before the lane is open
		}
		b := one(make([]byte, 8))
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Device: device, Stack: uint64(g.Stack(text))}
		if _, f := g.Issue(op, b, b); f != nil {
			t.Fatal(f)
		}
	}
	var got []string
	for _, lane := range (view{g}).Lanes() {
		for _, f := range lane.Run.Flights().Flights {
			got = append(got, f.Stack)
		}
	}
	if want := []string{"train.py\t0\tstep\n", "train.py\t3\tstep\n", "train.py\t0\tstep\n", "train.py\t2\tstep\n"}; !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
}

// The timeout of an operation on a device dumps both lanes, and the first rank that waits writes the file of a rank
// whose device lane is behind, although that rank has made more calls on host memory.
func TestDumpOfARankThatIsBehindOnDevices(t *testing.T) {
	withDevices(t)
	dir := t.TempDir()
	w := newWorldWith(t, 2, opTimeout, options{"fr_dump": filepath.Join(dir, "rank_")})
	w.each(func(g *Group) error {
		for range 3 {
			if f := sum(g, 10); f != nil {
				return f
			}
		}
		return asError(deviceSum(g, 10))
	})
	b := one(make([]byte, 40))
	_, f := w.groups[0].Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Device: aDevice, Timeout: 20 * time.Millisecond}, b, b)
	require.NoError(t, expect(f, coll.Timeout, "all_reduce #2"))
	if cause := w.groups[0].Cause(); !cause.OnDevice || cause.Rank != 1 {
		t.Errorf("%+v", cause)
	}
	for rank := range 2 {
		// The failure is raised when the files are written, or half a second later.
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank_%d", rank)))
		for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); runtime.Gosched() {
			text, err = os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank_%d", rank)))
		}
		require.NoError(t, err)
		if !bytes.Contains(text, []byte(t.Name()+"/device")) {
			t.Errorf("the file of rank %d lacks the device lane", rank)
		}
	}
}

// The numbers of the lanes are apart in the timeline.
func TestTimelineOfBothLanes(t *testing.T) {
	withDevices(t)
	path := filepath.Join(t.TempDir(), "trace")
	w := newWorldWith(t, 2, opTimeout, options{"trace": path})
	w.each(func(g *Group) error {
		for _, sum := range []func(*Group, int) *coll.Failure{sum, deviceSum, deviceSum} {
			if f := sum(g, 10); f != nil {
				return f
			}
		}
		return nil
	})
	w.destroy()
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var events []observe.TraceEvent
	require.NoError(t, json.Unmarshal(text, &events))
	count := map[string]int{}
	for _, e := range events {
		if e.Phase == "b" && e.Name == "all_reduce" {
			count[e.Category+" "+e.ID]++
		}
	}
	for id, want := range map[string]int{"/all_reduce/1": 2, "/device/all_reduce/1": 2, "/device/all_reduce/2": 2} {
		category := t.Name() + strings.TrimSuffix(id, id[strings.Index(id, "/all"):])
		if n := count[category+" "+t.Name()+id]; n != want { // both ranks are in this process
			t.Errorf("%d events of %s, expected %d: %v", n, id, want, count)
		}
	}
}

// A rank that dies inside operations on devices only is not said to have called nothing.
func TestDeathNamesTheCallOnADevice(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return asError(deviceSum(g, 10)) })
	w.groups[0].peerDied(1)
	f := w.groups[0].Cause()
	require.NoError(t, expect(f, coll.PeerFailure, "rank 1", "died in or after all_reduce #1 (float32, SUM, 10 elements) on a device"))
	if !f.OnDevice || f.Op != "all_reduce" || f.Sequence != 1 {
		t.Errorf("%+v", f)
	}
}

// Rows of statistics, metrics and explanations have the engine that carries an operation out, and not the one that the group has chosen. A library
// of the test reduces nothing but int32.
func TestObserversNameTheEngineThatCarriesOut(t *testing.T) {
	for _, c := range []struct{ hosts, host string }{{"00", "shm"}, {"01", "shm+tcp"}} {
		t.Run(c.host, func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, 2, 1, true)
			useLibrary(t, devices)
			eachAProcess(t)
			w, errs := tryWorld(t, 2, opTimeout, onHosts(c.hosts))
			require.NoError(t, errors.Join(errs...))
			w.each(func(g *Group) error {
				for _, of := range []coll.DataType{coll.Int32, coll.Float32} {
					b := devices[g.rank].buffer(40)
					work, f := issueOn(g, devices[g.rank], coll.Op{Kind: coll.AllReduce, Type: of}, one(b), one(b))
					if f == nil {
						f = work.finish()
					}
					if f != nil {
						return f
					}
				}
				return asError(sum(g, 10))
			})
			text := string(Get().Observers().Metrics())
			for _, g := range w.groups {
				s, err := g.Stats()
				require.NoError(t, err)
				var rows []string
				for _, r := range s.Rows {
					rows = append(rows, fmt.Sprintf("%s by %s over %s", r.Type, r.Engine, r.Transport))
				}
				require.ElementsMatch(t, []string{"float32 by host over " + c.host, "int32 by nccl over library", "float32 by staged over " + c.host}, rows)
				require.Equal(t, "nccl", s.Lanes[1].Engine)
				for _, labels := range []string{`engine="host",transport="` + c.host, `engine="nccl",transport="library`, `engine="staged",transport="` + c.host} {
					require.Contains(t, text, labels+`"} 1`)
				}
				for _, q := range []struct {
					op, dtype, reduce string
					carrier, why      string
				}{
					{"all_reduce", "int32", "", "nccl", ""},
					{"all_reduce", "", "", "staged", "nccl does not carry out all_reduce (SUM) of float32: they go through host memory"},
					{"reduce", "int32", "AVG", "staged", "nccl does not carry out reduce (AVG) of int32: they go through host memory"},
					{"all_gather", "", "", "nccl", ""},
					{"send", "int32", "", "staged", "nccl does not carry out p2p operations: they go through host memory"},
				} {
					e, err := Get().Explain(Question{Op: q.op, Bytes: 8, Group: g.Handle(), Device: true, Type: q.dtype, Reduce: q.reduce})
					require.NoError(t, err)
					require.Equal(t, []string{"nccl", q.carrier, q.why}, []string{e.Engine, e.Carrier, e.CarrierWhy})
				}
			}
		})
	}
}
