package observe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

func TestTimeline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace-%r.json")
	w := newWorld(t, 2, options{"trace": path})
	const ops = 20
	w.each(func(g *pgbackend.Group) error {
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
	// The file has the name of the rank that asked first, and a number if the process has written a timeline before.
	files, err := filepath.Glob(strings.Replace(path, "%r", "*", 1) + "*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var events []observe.TraceEvent
	require.NoError(t, json.Unmarshal(text, &events))
	count := map[string]int{}
	ends := map[int]float64{}
	slices.SortStableFunc(events, func(a, b observe.TraceEvent) int {
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
		if e.Phase == "X" && e.Name != "wait" { // waits lie inside other stages
			if *e.Duration < 0 || e.Begin < ends[e.Thread]-1 {
				t.Fatalf("%+v begins before the one before it ends, at %v", e, ends[e.Thread])
			}
			ends[e.Thread] = e.Begin + *e.Duration
		}
	}
	// The file has the events of both ranks, because both belong to this process.
	if count["b all_reduce"] != 2*(ops+1) || count["e all_reduce"] != 2*(ops+1) || count["b queue"] < 2 || count["X publish"] < 2*ops*4 ||
		count["X reduce"] < 2*ops*4 || count["X collect"] < 2*ops*4 || count["M thread_name"] < 2 || count["M process_name"] != 1 {
		t.Errorf("%v", count)
	}
}

// Destroying a group does not wait for a file system that hangs. A pipe without a reader stands for it here.
func TestTheEndDoesNotWaitForFiles(t *testing.T) {
	defer observe.SetExitTimeout(10 * time.Millisecond)()
	path := filepath.Join(t.TempDir(), "pipe")
	pipe := path
	if begun := observers().TimelineFiles(); begun > 0 {
		pipe = fmt.Sprintf("%s.%d", path, begun+1)
	}
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	w := newWorld(t, 1, options{"trace": path})
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
	require.NoError(t, err)
	_ = reader.Close()
}
