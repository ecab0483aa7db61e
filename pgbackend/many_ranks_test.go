package pgbackend

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// manyProcesses is the variable with the orders for a process of TestAGroupOf513Ranks.
const manyProcesses = "MANY_RANKS_TEST"

const (
	manyRanks    = 513
	ranksOfAHost = 8 // and of its process
	manyTimeout  = 10 * time.Minute
)

// manyStores are where the ranks of a process meet: a server of the process of rank 0, and files for what lasts.
type manyStores struct {
	*bootstrap.TCPStore
	files *bootstrap.FileStore
}

func (s manyStores) Last() (bootstrap.Claimer, error) { return s.files.Last() }

func openManyStores(id bootstrap.ID, dir string) (s manyStores, err error) {
	if s.files, err = bootstrap.NewFileStore(dir); err != nil {
		return s, err
	}
	s.TCPStore, err = bootstrap.Dial(context.Background(), id, nil, time.Now().Add(manyTimeout), func() error { return nil }, bootstrap.Descriptors{})
	return s, err
}

// manyRanksFrom runs the ranks of a process: they make the group, sum, and see the last process die.
func manyRanksFrom(first int, store manyStores) error {
	n := min(ranksOfAHost, manyRanks-first)
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = oneOfManyRanks(first+i, store) })
	}
	running.Wait()
	return errors.Join(errs...)
}

func oneOfManyRanks(rank int, store manyStores) error {
	began := time.Now()
	g, err := Get().Create(Config{Rank: rank, Size: manyRanks, Name: "many", Timeout: manyTimeout, Store: store, Lasting: store,
		Options: options{"hostid": fmt.Sprint("host ", rank/ranksOfAHost)}})
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	defer g.Destroy()
	if rank == 0 {
		fmt.Fprintf(os.Stderr, "the group was made in %v\n", time.Since(began))
	}
	for i, x := range []transfer{{kind: coll.AllReduce, length: equalLength(1000)}, {kind: coll.Broadcast, length: equalLength(1000)},
		{kind: coll.AllGather, length: equalLength(8)}, {kind: coll.Barrier, length: equalLength(0)}} {
		x.root, x.salt = manyRanks-1, i
		if err := g.try(x, coll.Op{}); err != nil {
			return fmt.Errorf("rank %d: %v: %w", rank, x.kind, err)
		}
	}
	if rank%256 == 0 {
		fmt.Fprintf(os.Stderr, "rank %d: the collectives were done after %v; memory of its process: %s\n", rank, time.Since(began), ownMemory())
	}
	if err := bootstrap.Agree(store, "done", rank, manyRanks, manyTimeout, nil); err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	if rank == manyRanks-1 {
		os.Exit(0) // it dies
	}
	f := sum(g, 10)
	if err := expect(f, coll.PeerFailure); err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	if f.Rank/ranksOfAHost != (manyRanks-1)/ranksOfAHost || !strings.Contains(f.Message, fmt.Sprintf("rank %d (host ", f.Rank)) {
		return fmt.Errorf("rank %d: %q names no rank of the process that has died", rank, f.Message)
	}
	return nil
}

// ownMemory returns the memory of this process, of which a part is shared with others.
func ownMemory() string {
	text, _ := os.ReadFile("/proc/self/smaps_rollup") // there is none on older systems
	for line := range strings.Lines(string(text)) {
		if size, found := strings.CutPrefix(line, "Pss:"); found {
			return strings.TrimSpace(size)
		}
	}
	return "unknown"
}

// manyRanksMain is the program of a process: its orders are the id of the store, its directory, and its first rank.
// There are many such processes, so each takes little memory.
func manyRanksMain(orders string) int {
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(20)
	var code, dir string
	var first int
	_, err := fmt.Sscan(orders, &code, &dir, &first)
	var text []byte
	if err == nil {
		text, err = hex.DecodeString(code)
	}
	var id bootstrap.ID
	if err == nil {
		id, err = bootstrap.ParseID(text)
	}
	var store manyStores
	if err == nil {
		store, err = openManyStores(id, dir)
	}
	if err == nil {
		err = manyRanksFrom(first, store)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// 513 ranks are 65 processes on 65 hosts: more ranks than share memory anywhere, and so many processes that not every two have a link. They make a
// group, with a roster, and have collectives; the process of the last rank dies, and all others name a rank of it.
func TestAGroupOf513Ranks(t *testing.T) {
	if os.Getenv("TEST_MANY_RANKS") == "" {
		t.Skip("it starts 64 processes, which take 5 GB and a minute: make test-hosts runs it, or TEST_MANY_RANKS=1")
	}
	server := bootstrap.NewServer(bootstrap.Descriptors{})
	defer server.Close()
	id, err := server.NewID(bootstrap.Endpoint{Addresses: bootstrap.Loopback, Of: "a test"}, nil)
	require.NoError(t, err)
	code, dir := id.Encode(), t.TempDir()
	type child struct {
		cmd  *exec.Cmd
		said strings.Builder
	}
	var children []*child
	for first := ranksOfAHost; first < manyRanks; first += ranksOfAHost {
		c := &child{cmd: exec.Command(os.Args[0])}
		c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%x %s %d", manyProcesses, code, dir, first))
		c.cmd.Stderr = &c.said
		require.NoError(t, c.cmd.Start())
		t.Cleanup(func() { _ = c.cmd.Process.Kill() })
		children = append(children, c)
	}
	store, err := openManyStores(id, dir)
	require.NoError(t, err)
	require.NoError(t, manyRanksFrom(0, store))
	for i, c := range children {
		require.NoError(t, c.cmd.Wait(), "process %d: %s", 1+i, &c.said)
		if c.said.Len() > 0 {
			t.Log(c.said.String())
		}
	}
}
