package observe_test

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

// Where dumps go may hang for ever: groups fail, are destroyed, and the process ends all the same.
func TestDumpsThatHangHoldNoGroup(t *testing.T) {
	defer observe.SetExitTimeout(10 * time.Millisecond)()
	hang, hung := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	restore := observe.SetReplaceFile(func(string, []byte) error {
		if once.CompareAndSwap(false, true) {
			close(hung)
		}
		<-hang
		return nil
	})
	var worlds []*world
	for range 3 { // the first hangs while it is written, the others come after it
		worlds = append(worlds, newWorld(t, 2, options{"fr_dump": t.TempDir() + "/rank_"}))
	}
	for i, w := range worlds {
		b := make([]byte, 4)
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Timeout: 10 * time.Millisecond} // the peer does not join
		if _, f := w.groups[0].Issue(op, [][]byte{b}, [][]byte{b}); f == nil || f.Status != coll.Timeout {
			t.Fatal(f)
		}
		if i == 0 {
			await(t, hung, "the dumps")
		}
	}
	done := make(chan struct{})
	go func() {
		for _, w := range worlds {
			w.destroy()
		}
		pgbackend.Get().Shutdown()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("groups wait for their dumps")
	}
	close(hang)
	await(t, done, "the groups")
	await(t, observers().Written(), "the dumps")
	restore()
}

// The file of metrics may hang when the last group is destroyed: peers hear the goodbye and other groups are made meanwhile.
func TestMetricsThatHangHoldNoGroup(t *testing.T) {
	defer observe.SetExitTimeout(hangAfter)()
	hang, hung := make(chan struct{}), make(chan struct{}, 100)
	restore := observe.SetReplaceFile(func(string, []byte) error {
		hung <- struct{}{}
		<-hang
		return nil
	})
	w := newWorld(t, 2, options{"metrics_file": t.TempDir() + "/metrics"})
	<-hung
	destroyed := make(chan struct{})
	go func() {
		w.destroy()
		close(destroyed)
	}()
	p := pgbackend.Get()
	listed := func(g *pgbackend.Group) bool { return p.Group(g.Handle()) != nil }
	for began := time.Now(); slices.ContainsFunc(w.groups, listed); { // a group is removed from the list after its goodbye
		if time.Since(began) > hangAfter {
			t.Fatal("the group waits for its metrics before its goodbye")
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-destroyed:
		t.Error("the last Destroy does not wait for the file")
	default:
	}
	other := newWorld(t, 2, nil)
	other.each(func(g *pgbackend.Group) error { return asError(sum(g, 2)) })
	other.destroy()
	close(hang)
	await(t, destroyed, "the groups")
	restore()
}

// blockedPipe is a pipe that is full.
func blockedPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	require.NoError(t, unix.SetNonblock(fds[1], true))
	for page := make([]byte, 4096); ; {
		if _, err := unix.Write(fds[1], page); err != nil {
			break
		}
	}
	require.NoError(t, unix.SetNonblock(fds[1], false))
	return os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")
}

// Nobody reads standard error: failures are raised, and lines beyond a bound are dropped and counted.
func TestLinesNeverBlockAFailure(t *testing.T) {
	w := newWorld(t, 2, options{"debug": "INFO"})
	read, write := blockedPipe(t)
	observe.FlushLog(time.Minute) // of what the groups have printed
	observe.SetOutput(write)
	began := time.Now()
	for i := range 3000 {
		observe.Log("INFO", fmt.Sprint("line ", i))
	}
	w.groups[0].Abort("for the test") // prints at INFO
	if f := sum(w.groups[1], 2); f == nil || f.Status != coll.Aborted {
		t.Error(f)
	}
	w.destroy()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(read) // until the other end is closed
		text <- string(all)
	}()
	observe.FlushLog(time.Minute)
	observe.Log("INFO", "the last line")
	observe.FlushLog(time.Minute)
	observe.SetOutput(nil)
	if err := write.Close(); err != nil {
		t.Error(err)
	}
	if all := <-text; !strings.Contains(all, "line 999\n") || strings.Contains(all, "line 1000\n") ||
		!strings.Contains(all, "lines before this one were dropped") || !strings.Contains(all, "the last line") {
		t.Errorf("%d bytes, which end with %q", len(all), all[max(0, len(all)-200):])
	}
}

// Warnings name groups, of which there may be any number in the life of a process.
func TestOnlySoManyWarningsAreRemembered(t *testing.T) {
	var out strings.Builder
	observe.SetOutput(&out)
	for i := range 3 * observe.MostRecent {
		observe.Warn("group %d", i)
		observe.Warn("group %d", i)
	}
	observe.FlushLog(time.Minute)
	observe.SetOutput(nil)
	if n := strings.Count(out.String(), "\n"); n != 3*observe.MostRecent {
		t.Errorf("%d lines", n)
	}
	if n := observe.RememberedWarnings(); n != observe.MostRecent {
		t.Errorf("%d warnings are remembered", n)
	}
}
