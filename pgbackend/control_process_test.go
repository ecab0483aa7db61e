package pgbackend

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// otherProcess is the variable with the store's directory for a process that this test binary starts as rank 1.
const otherProcess = "CONTROL_TEST_STORE"

func createInStore(dir string, rank int) (*Group, error) {
	store, err := bootstrap.NewFileStore(dir)
	if err != nil {
		return nil, err
	}
	return Get().Create(Config{Rank: rank, Size: 2, Name: "processes", Timeout: opTimeout, Store: store})
}

// rankOfAnotherProcess makes a few exchanges, then one of another topic than rank 0, in which it waits until it is
// killed.
func rankOfAnotherProcess(dir string) int {
	g, err := createInStore(dir, 1)
	if err == nil {
		err = exchangesOfProcesses(g)
	}
	if err == nil {
		_, f := g.exchange(topicFusion, "never", nil, opTimeout)
		err = asError(f)
	}
	fmt.Fprintln(os.Stderr, "rank 1:", err)
	return 1
}

func exchangesOfProcesses(g *Group) error {
	for round, length := range []int{0, 1, controlPart + 1, 100_000} {
		if err := exchanged(g, topicIPC, round, func(rank int) int { return length * (rank + 1) }); err != nil {
			return err
		}
	}
	return nil
}

// The ranks are two processes, each with an arena of its own. One is killed while both wait.
func TestControlExchangeBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), otherProcess+"="+dir)
	other.Stderr = &said
	require.NoError(t, other.Start())
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
		if t.Failed() {
			t.Logf("%s", said.Bytes())
		}
	}()
	g, err := createInStore(dir, 0)
	require.NoError(t, err)
	defer g.Destroy()
	require.NoError(t, exchangesOfProcesses(g))
	before := g.entry(topicIPC).posted.Load()
	ended := make(chan *coll.Failure, 1)
	go func() {
		_, f := g.exchange(topicIPC, "handles", nil, opTimeout)
		ended <- f
	}()
	theirs := (*controlArea)(unsafe.Add(g.maps[1].Base(), g.members[1].Control))
	for theirs[topicFusion].posted.Load() == 0 || g.entry(topicIPC).posted.Load() == before {
		time.Sleep(time.Millisecond)
	}
	killed := time.Now()
	require.NoError(t, other.Process.Kill())
	f := <-ended
	measure(t, "knowing that a rank has died", time.Since(killed), 2*time.Second)
	if err := expect(f, coll.PeerFailure, "Connection closed by peer: rank 1 (host ", "died before its first collective"); err != nil {
		t.Error(err)
	} else if f.Rank != 1 || f.PID != other.Process.Pid {
		t.Errorf("culprit: %+v", f)
	}
}
