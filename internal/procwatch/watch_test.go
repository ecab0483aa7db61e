package procwatch

import (
	"bufio"
	"os"
	"os/exec"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bound is far above what the kernel needs and far below what a user would call a hang.
const bound = 20 * time.Second

// child starts a process that ends when its standard input is closed.
func child(t *testing.T) (cmd *exec.Cmd, startTime uint64, end func()) {
	t.Helper()
	cmd = exec.Command("sh", "-c", "echo up; read x")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	startTime, err = StartTime(cmd.Process.Pid)
	require.NoError(t, err)
	return cmd, startTime, func() { in.Close() }
}

func watch(t *testing.T, pid int, startTime uint64) *Watcher {
	t.Helper()
	w, err := Watch(pid, startTime)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

func mustFire(t *testing.T, w *Watcher) {
	t.Helper()
	select {
	case <-w.Done():
	case <-time.After(bound):
		t.Fatalf("the watch did not fire within %v", bound)
	}
}

func fired(w *Watcher) bool {
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

func TestFiresOnExit(t *testing.T) {
	cmd, start, end := child(t)
	w := watch(t, cmd.Process.Pid, start)
	if fired(w) {
		t.Fatal("fired while the process lives")
	}
	end()
	mustFire(t, w)
}

// The watcher reports the end of a killed child before its parent has waited for it, while it is a zombie.
func TestFiresOnKillBeforeAnyoneWaitedForIt(t *testing.T) {
	cmd, start, _ := child(t)
	w := watch(t, cmd.Process.Pid, start)
	require.NoError(t, cmd.Process.Kill())
	mustFire(t, w)
	mustFire(t, watch(t, cmd.Process.Pid, start)) // a watch that begins later fires too
}

func TestFiresAtOnceForADeadProcessAndForAReusedPid(t *testing.T) {
	cmd, start, end := child(t)
	if w := watch(t, cmd.Process.Pid, start-1); !fired(w) {
		t.Error("another start time is taken for the same process")
	}
	end()
	cmd.Wait()
	if w := watch(t, cmd.Process.Pid, start); !fired(w) {
		t.Error("a process that is gone is taken for a living one")
	}
}

func TestCloseEndsTheWatchAndLeaksNothing(t *testing.T) {
	cmd, start, end := child(t)
	watch(t, cmd.Process.Pid, start).Close() // makes the runtime open the descriptors that its poller keeps
	before := descriptors(t)
	var ws []*Watcher
	for range 32 {
		ws = append(ws, watch(t, cmd.Process.Pid, start))
	}
	if got := descriptors(t); got != before+32 {
		t.Errorf("%d descriptors for 32 watches", got-before)
	}
	for _, w := range ws {
		w.Close()
		w.Close()
	}
	if got := descriptors(t); got != before {
		t.Errorf("%d descriptors before, %d after Close", before, got)
	}
	end()
	cmd.Wait()
	for _, w := range ws {
		if fired(w) {
			t.Fatal("a closed watch fired")
		}
	}
}

func TestWatchesTakeNoThreads(t *testing.T) {
	cmd, start, _ := child(t)
	before := pprof.Lookup("threadcreate").Count()
	for range 64 {
		watch(t, cmd.Process.Pid, start)
	}
	if grew := pprof.Lookup("threadcreate").Count() - before; grew > 8 {
		t.Errorf("64 watches made %d threads", grew)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
