package observe_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

func TestFlightCapacity(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    int
	}{
		{nil, 2000},
		{[]string{"TORCH_FR_BUFFER_SIZE=7", "TORCH_NCCL_TRACE_BUFFER_SIZE=9"}, 7},
		{[]string{"TORCH_NCCL_TRACE_BUFFER_SIZE=9", "TORCH_FR_BUFFER_SIZE=7"}, 7},
		{[]string{"TORCH_NCCL_TRACE_BUFFER_SIZE=9", "TORCH_FR_BUFFER_SIZE="}, 9},
		{[]string{"TORCH_FR_BUFFER_SIZE=0", "TORCH_NCCL_TRACE_BUFFER_SIZE=9"}, 0},
		{[]string{"TORCH_FR_BUFFER_SIZE=-3"}, 0},
		{[]string{"TORCH_FR_BUFFER_SIZE=99999999999"}, observe.MaxFlights},
	} {
		if got, err := observe.FlightCapacity(c.environ); err != nil || got != c.want {
			t.Errorf("%v: %d, %v; expected %d", c.environ, got, err, c.want)
		}
	}
	_, err := observe.FlightCapacity([]string{"TORCH_FR_BUFFER_SIZE=many"})
	if err == nil || !strings.Contains(err.Error(), `TORCH_FR_BUFFER_SIZE="many"`) {
		t.Errorf("a bad value gives %v", err)
	}
}

// seenGroup and seenEntry are what a reader of FlightRecords sees.
type seenGroup struct {
	Group, Failure       string
	Rank, Size, Capacity int
	Total                uint64
	Config               struct{ Name, Desc, Ranks string }
	Status               map[string]int64
	Entries              []seenEntry
}

type seenEntry struct {
	Name       string    `json:"profiling_name"`
	Collective uint64    `json:"collective_seq_id"`
	Message    uint64    `json:"p2p_seq_id"`
	OpID       int64     `json:"op_id"`
	In         [][]int64 `json:"input_sizes"`
	Out        [][]int64 `json:"output_sizes"`
	InTypes    []string  `json:"input_dtypes"`
	State      string
	Retired    bool
	Created    int64  `json:"time_created_ns"`
	Started    *int64 `json:"time_discovered_started_ns"`
	Completed  *int64 `json:"time_discovered_completed_ns"`
	Thread     string `json:"thread_id"`
	TimeoutMS  int64  `json:"timeout_ms"`
	IsP2P      bool   `json:"is_p2p"`
}

// flights are the records of the world's groups, by rank.
func (w *world) flights() []seenGroup {
	w.t.Helper()
	text, err := observers().FlightRecords()
	if err != nil {
		w.t.Fatal(err)
	}
	var answer struct{ Groups []seenGroup }
	if err := json.Unmarshal(text, &answer); err != nil {
		w.t.Fatal(err)
	}
	mine := slices.DeleteFunc(answer.Groups, func(g seenGroup) bool { return g.Group != w.t.Name() })
	slices.SortFunc(mine, func(a, b seenGroup) int { return a.Rank - b.Rank })
	return mine
}

func (g seenGroup) String() string {
	var list []string
	for _, e := range g.Entries {
		number := e.Collective
		if e.IsP2P {
			number = e.Message - observe.P2PNumbers
		}
		text := fmt.Sprintf("%s %d %v %v->%v %s", e.Name, number, e.InTypes, e.In, e.Out, e.State)
		if e.Retired && e.State != "completed" {
			text += " retired"
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

func TestFlightRecordsOfAKnownSequence(t *testing.T) {
	w := newWorld(t, 2, nil)
	w.each(func(g *pgbackend.Group) error {
		b := one(make([]byte, 6))
		if f := sum(g, 3); f != nil {
			return f
		}
		work, f := sumAsync(g, 4)
		if f == nil {
			f = finish(work)
			work.Release()
		}
		if f == nil {
			_, f = g.Issue(coll.Op{Kind: coll.Barrier}, nil, nil)
		}
		if f == nil && g.Rank() == 0 {
			_, f = g.Issue(coll.Op{Kind: coll.Send, Type: coll.Int16, Root: 1, Tag: 5}, b, nil)
		}
		if f == nil && g.Rank() == 1 {
			_, f = g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Int16, Root: coll.AnySource, Tag: 5}, nil, b)
		}
		return asError(f)
	})
	collectives := "c10d:all_reduce 1 [Float] [[3]]->[[3]] completed; c10d:all_reduce 2 [Float] [[4]]->[[4]] completed; " +
		"c10d:barrier 3 [] []->[] completed; "
	all := w.flights()
	if len(all) != 2 {
		t.Fatalf("%d groups", len(all))
	}
	for rank, message := range []string{"c10d:send 0->1 1 [Short] [[3]]->[] completed", "c10d:recv 1<-0 1 [] []->[[3]] completed"} {
		g := all[rank]
		if want := collectives + message; g.String() != want {
			t.Errorf("rank %d:\n%s\nexpected\n%s", rank, g, want)
		}
		status := map[string]int64{"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 3}
		if g.Rank != rank || g.Size != 2 || g.Total != 4 || g.Capacity != 2000 || g.Failure != "" || !maps.Equal(g.Status, status) ||
			g.Config.Name != t.Name() || g.Config.Desc != "undefined" || g.Config.Ranks != "[0, 1]" {
			t.Errorf("rank %d: %+v", rank, g)
		}
		last := time.Now().Add(-time.Hour).UnixNano()
		for i, e := range g.Entries {
			if e.Created < last || *e.Started < e.Created || *e.Completed < *e.Started || e.Thread == "0" ||
				e.TimeoutMS != opTimeout.Milliseconds() || e.OpID != int64(i+1) || e.IsP2P != (i == 3) {
				t.Errorf("rank %d, entry %d: %+v", rank, i, e)
			}
			last = e.Created
		}
	}
}

func TestFlightRecordsOfAHang(t *testing.T) {
	w := newWorld(t, 2, nil)
	// The second operation is so long that its caller does not begin it: it waits behind the first.
	work, f := sumAsync(w.groups[0], 1<<18)
	if f != nil {
		t.Fatal(f)
	}
	next, f := sumAsync(w.groups[0], 1<<18)
	if f != nil {
		t.Fatal(f)
	}
	want := "c10d:all_reduce 1 [Float] [[262144]]->[[262144]] started; c10d:all_reduce 2 [Float] [[262144]]->[[262144]] scheduled"
	all := w.flights()
	for deadline := time.Now().Add(20 * time.Second); all[0].String() != want && time.Now().Before(deadline); all = w.flights() {
		_, _ = work.Wait(time.Millisecond) // drives it to where it needs the peer
	}
	status := map[string]int64{"last_enqueued_collective": 2, "last_started_collective": 1, "last_completed_collective": -1}
	if all[0].String() != want || !maps.Equal(all[0].Status, status) {
		t.Errorf("%+v", all[0])
	}
	if len(all[1].Entries) != 0 || all[1].Status["last_enqueued_collective"] != -1 {
		t.Errorf("the rank that stays away: %+v", all[1])
	}

	w.groups[1].Abort("the test is over")
	for _, each := range []interface {
		Wait(time.Duration) (bool, *coll.Failure)
		Release()
	}{work, next} {
		for done := false; !done; {
			done, f = each.Wait(time.Second)
		}
		each.Release()
		if f == nil || f.Status != coll.Aborted || !strings.Contains(f.Message, "the test is over") {
			t.Error(f)
		}
	}
	// A failed group stays until it is destroyed. The second operation never began.
	failed := w.flights()[0]
	if want := strings.NewReplacer("started", "started retired", "scheduled", "scheduled retired").Replace(want); failed.String() != want {
		t.Errorf("%s", failed)
	}
	if failed.Entries[0].Started == nil || failed.Entries[1].Started != nil || failed.Entries[0].Completed != nil || !strings.Contains(failed.Failure, "the test is over") {
		t.Errorf("%+v", failed)
	}
	w.destroy()
	if left := w.flights(); len(left) != 0 {
		t.Errorf("after destroying: %+v", left)
	}
}

func TestFlightRecordsHonourTheCapacity(t *testing.T) {
	for capacity, want := range map[int]string{
		0: "[]",
		2: "[c10d:all_reduce 6 [Float] [[6]]->[[6]] completed; c10d:all_reduce 7 [Float] [[7]]->[[7]] completed]",
	} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			t.Setenv("TORCH_FR_BUFFER_SIZE", fmt.Sprint(capacity))
			w := newWorld(t, 1, nil)
			for n := 1; n <= 7; n++ {
				if f := sum(w.groups[0], n); f != nil {
					t.Fatal(f)
				}
			}
			if got := fmt.Sprint(w.flights()); got != want {
				t.Errorf("%s, expected %s", got, want)
			}
		})
	}
}
