package pgbackend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sagecomm/internal/coll"
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
		{[]string{"TORCH_FR_BUFFER_SIZE=99999999999"}, maxFlights},
	} {
		if got, err := flightCapacity(c.environ); err != nil || got != c.want {
			t.Errorf("%v: %d, %v; expected %d", c.environ, got, err, c.want)
		}
	}
	_, err := flightCapacity([]string{"TORCH_FR_BUFFER_SIZE=many"})
	if err == nil || !strings.Contains(err.Error(), `TORCH_FR_BUFFER_SIZE="many"`) {
		t.Errorf("a bad value gives %v", err)
	}
}

// flights are the records of the world's groups, by rank.
func (w *world) flights() []flightGroup {
	w.t.Helper()
	text, err := Get().FlightRecords()
	if err != nil {
		w.t.Fatal(err)
	}
	var answer struct{ Groups []flightGroup }
	if err := json.Unmarshal(text, &answer); err != nil {
		w.t.Fatal(err)
	}
	mine := slices.DeleteFunc(answer.Groups, func(g flightGroup) bool { return g.Group != w.t.Name() })
	slices.SortFunc(mine, func(a, b flightGroup) int { return a.Rank - b.Rank })
	return mine
}

func (g flightGroup) String() string {
	var list []string
	for _, e := range g.Entries {
		list = append(list, fmt.Sprintf("%s %d %s root %d, %d bytes, %s", e.Kind, e.Number, e.Type, e.Root, e.Bytes, e.State))
	}
	return strings.Join(list, "; ")
}

func TestFlightRecordsOfAKnownSequence(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
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
		if f == nil && g.rank == 0 {
			_, f = g.Issue(coll.Op{Kind: coll.Send, Type: coll.Int16, Root: 1, Tag: 5}, b, nil)
		}
		if f == nil && g.rank == 1 {
			_, f = g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Int16, Root: coll.AnySource, Tag: 5}, nil, b)
		}
		return asError(f)
	})
	collectives := "all_reduce 1 float32 root 0, 12 bytes, completed; all_reduce 2 float32 root 0, 16 bytes, completed; " +
		"barrier 3 int8 root 0, 0 bytes, completed; "
	all := w.flights()
	if len(all) != 2 {
		t.Fatalf("%d groups", len(all))
	}
	for rank, message := range []string{"send 1 int16 root 1, 6 bytes, completed", "recv 1 int16 root 0, 6 bytes, completed"} {
		g := all[rank]
		if want := collectives + message; g.String() != want {
			t.Errorf("rank %d:\n%s\nexpected\n%s", rank, g, want)
		}
		if g.Rank != rank || g.Size != 2 || g.Sequence != 3 || g.Started != 3 || g.Completed != 3 || g.Total != 4 ||
			g.Capacity != 2000 || g.Prefix != "sagecomm" || g.Failure != "" {
			t.Errorf("rank %d: %+v", rank, g)
		}
		last := time.Now().Add(-time.Hour).UnixNano()
		for i, e := range g.Entries {
			if e.Created < last || e.Started < e.Created || e.Completed < e.Started || e.Thread == 0 || e.Async != (i == 1) ||
				e.TimeoutMS != opTimeout.Milliseconds() || e.Tag != 5*(i/3) {
				t.Errorf("rank %d, entry %d: %+v", rank, i, e)
			}
			last = e.Created
		}
	}
}

func TestFlightRecordsOfAHang(t *testing.T) {
	w := newWorld(t, 2)
	// Long enough that its caller does not begin it: the second waits behind the first.
	work, f := sumAsync(w.groups[0], 1<<18)
	if f != nil {
		t.Fatal(f)
	}
	next, f := sumAsync(w.groups[0], 1<<18)
	if f != nil {
		t.Fatal(f)
	}
	want := "all_reduce 1 float32 root 0, 1048576 bytes, started; all_reduce 2 float32 root 0, 1048576 bytes, scheduled"
	all := w.flights()
	for deadline := time.Now().Add(20 * time.Second); all[0].String() != want && time.Now().Before(deadline); all = w.flights() {
		_, _ = work.Wait(time.Millisecond) // drives it to where it needs the peer
	}
	if all[0].String() != want || all[0].Sequence != 2 || all[0].Started != 1 || all[0].Completed != 0 {
		t.Errorf("%+v", all[0])
	}
	if len(all[1].Entries) != 0 || all[1].Sequence != 0 {
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
		if err := expect(f, coll.Aborted, "the test is over"); err != nil {
			t.Error(err)
		}
	}
	// A failed group stays until it is destroyed. The second operation never began.
	failed := w.flights()[0]
	if want := strings.NewReplacer("started", "failed", "scheduled", "failed").Replace(want); failed.String() != want {
		t.Errorf("%s", failed)
	}
	if failed.Entries[0].Started == 0 || failed.Entries[1].Started != 0 || !strings.Contains(failed.Failure, "the test is over") {
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
		2: "[all_reduce 6 float32 root 0, 24 bytes, completed; all_reduce 7 float32 root 0, 28 bytes, completed]",
	} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			t.Setenv("TORCH_FR_BUFFER_SIZE", fmt.Sprint(capacity))
			w := newWorld(t, 1)
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
