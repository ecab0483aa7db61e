package observe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

func TestStatusOfAHang(t *testing.T) {
	w := newWorld(t, 3, nil)
	w.each(func(g *pgbackend.Group) error { return asError(sum(g, 2)) })
	work, f := sumAsync(w.groups[0], 2)
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	var seen observe.ProcessStatus
	if err := json.Unmarshal(observers().Status(), &seen); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(seen.Groups, func(g observe.GroupStatus) bool { return g.Group == t.Name() && g.Rank == 1 })
	if i < 0 || seen.PID != os.Getpid() {
		t.Fatalf("%+v", seen)
	}
	// Rank 1, which has not made rank 0's call, sees the same.
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
