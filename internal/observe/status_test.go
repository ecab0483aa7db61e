package observe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
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
	require.NoError(t, json.Unmarshal(observers().Status(), &seen))
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

// A send or recv that is not complete is in the status beside the last collective.
func TestStatusOfARecvThatWaits(t *testing.T) {
	w := newWorld(t, 2, nil)
	w.each(func(g *pgbackend.Group) error { return asError(sum(g, 2)) })
	recv := coll.Op{Kind: coll.Recv, Type: coll.Float32, Root: 1, Tag: 3, Async: true}
	work, f := w.groups[0].Issue(recv, nil, one(make([]byte, 8)))
	if f != nil {
		t.Fatal(f)
	}
	defer work.Release()
	var seen observe.ProcessStatus
	require.NoError(t, json.Unmarshal(observers().Status(), &seen))
	for _, g := range seen.Groups {
		if g.Group != t.Name() {
			continue
		}
		if a, b := g.Ranks[0], g.Ranks[1]; a.State != "done" || a.Message != "recv (float32, 2 elements, from rank 1, tag 3)" || b.Message != "" {
			t.Errorf("rank %d sees %+v", g.Rank, g.Ranks)
		}
	}
	w.groups[1].Abort("the test is over")
	if f := finish(work); f == nil {
		t.Error("it succeeded")
	}
}
