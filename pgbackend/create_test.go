package pgbackend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// expectRefused checks that Create fails on every rank with an error that contains all parts, and frees the group's
// memory.
func expectRefused(t *testing.T, n int, of func(rank int) options, parts ...string) {
	t.Helper()
	requireNoNetworks(t) // what crosses between hosts may keep memory of tests before
	Get().sweep()
	before := inUse(t)
	_, errs := tryWorld(t, n, opTimeout, of)
	for rank, err := range errs {
		if err == nil {
			t.Errorf("rank %d joined", rank)
			continue
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("rank %d: %q is not in %q", rank, p, err)
			}
		}
	}
	if now := inUse(t); before > 0 && now > before { // groups of other tests may give theirs back meanwhile
		t.Errorf("%d bytes in use, %d before", now, before)
	}
}

func TestWrongOptions(t *testing.T) {
	newWorld(t, 1) // the arena exists
	for _, c := range []struct {
		o     options
		parts []string
	}{
		{options{"tune": "all_reduce:warp"}, []string{"SAGECOMM_TUNE", "warp"}},
		{options{"tune": "all_reduce:8K-0:one_shot"}, []string{"SAGECOMM_TUNE"}},
		{options{"shm_attach": "proc,pigeon"}, []string{"shm_attach", "pigeon"}},
		{options{"spin": "soon"}, []string{"spin", "soon"}},
		{options{"kernels": "mmx"}, []string{"kernels", "mmx"}},
		{options{"timeout": "-3"}, []string{"timeout", "-3"}},
		{options{"no_such_thing": "1"}, []string{"no_such_thing"}},
	} {
		for key, value := range c.o {
			t.Run(key+"="+value, func(t *testing.T) {
				g, err := Get().Create(Config{Size: 1, Name: t.Name(), Timeout: time.Second, Store: bootstrap.NewMemStore(), Options: c.o})
				if err == nil {
					_ = g.Destroy()
					t.Fatal("it was accepted")
				}
				for _, p := range c.parts {
					if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(p)) {
						t.Errorf("%q is not in %q", p, err)
					}
				}
			})
		}
	}
	for _, c := range []Config{{Size: 0}, {Rank: 2, Size: 2}, {Rank: -1, Size: 2}, {Size: 1 << 20}, {Size: 1, Timeout: -1}} {
		c.Store = bootstrap.NewMemStore()
		if _, err := Get().Create(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// Ranks that would choose different algorithms make no group; their errors name the variable and both values.
func TestDifferentSettingsAreRefusedOnAllRanks(t *testing.T) {
	for _, c := range []struct {
		o    options
		want string
	}{
		{options{"tune": "all_reduce:two_shot"}, `SAGECOMM_TUNE is not set on rank 0 and "all_reduce:two_shot" on rank 1; set it alike on all ranks`},
		{options{"shm_attach": "scm"}, `SAGECOMM_SHM_ATTACH is "proc,scm,tmpfs" on rank 0 and "scm" on rank 1`},
		{options{"link_timeout": "10"}, `SAGECOMM_LINK_TIMEOUT is not set on rank 0 and "10s" on rank 1`},
		{options{"data_connections": "3"}, `SAGECOMM_DATA_CONNECTIONS is not set on rank 0 and "3" on rank 1`},
	} {
		expectRefused(t, 3, func(rank int) options {
			if rank == 1 {
				return c.o
			}
			return nil
		}, "ranks 0 and 1 are set up differently", c.want)
	}
}

// A setting that one rank cannot read is told to the others, which wait for nobody. Of 80 ranks most read the reason
// from rank 0.
func TestAWrongSettingIsToldToAllRanks(t *testing.T) {
	for _, size := range []int{3, 80} {
		for _, wrong := range []int{0, size - 1} {
			w, errs := tryWorld(t, size, time.Hour, func(rank int) options {
				if rank == wrong {
					return options{"link_timeout": "99"}
				}
				return nil
			})
			for rank, err := range errs {
				require.ErrorContains(t, err, `option link_timeout="99" is not accepted: expected seconds, 1 to 60`, "rank %d of %d", rank, size)
				if rank != wrong {
					require.ErrorContains(t, err, fmt.Sprintf("rank %d", wrong), "rank %d of %d", rank, size)
				}
			}
			w.destroy()
		}
	}
}

// Ranks that pass different world sizes fail at once, although one waits for a rank that does not exist.
func TestDifferentSizesAreRefused(t *testing.T) {
	store := bootstrap.NewMemStore()
	began := time.Now()
	ranksOf(t, 2, func(rank int) error {
		_, err := Get().Create(Config{Rank: rank, Size: 2 + rank, Name: "g", Timeout: opTimeout, Store: store})
		if want := "ranks 0 and 1 are set up differently: the number of ranks is 2 on rank 0 and 3 on rank 1"; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	measure(t, "the refusal", time.Since(began), opTimeout/10)
}

// Two processes are started as one rank, and the first one finds the other. Here the test writes the description of the
// other.
func TestRankThatIsStartedTwice(t *testing.T) {
	store := bootstrap.NewMemStore()
	refused := make(chan error)
	go func() {
		_, err := Get().Create(Config{Rank: 0, Size: 2, Name: "g", Timeout: opTimeout, Store: store})
		refused <- err
	}()
	if _, err := store.Get("sagecomm/epoch/0", opTimeout); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, store.Set("sagecomm/epoch/0", []byte("2 host h, pid 12")))
	err := <-refused
	if want := fmt.Sprintf("rank 0 was started twice: by host %s, pid %d and by host h, pid 12", bootstrap.HostName(), os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// Settings of a rank take effect and do not change results.
func TestTune(t *testing.T) {
	const short, long = "one_shot", "two_shot"
	for tune, want := range map[string][]string{ // the algorithm of each count
		"all_reduce:one_shot": {short, short, short},
		"all_reduce:two_shot": {long, long, long},
		"all_reduce:0-8K:one_shot;all_reduce:8K-inf:two_shot@chunk=64K": {short, long, long},
	} {
		w := newWorldWith(t, 3, opTimeout, options{"tune": tune})
		w.each(func(g *Group) error {
			for i, count := range []int{1, 5000, 100_000} {
				if got := g.selector.Choose(coll.AllReduce, uint64(4*count)).Algorithm; got != want[i] {
					return fmt.Errorf("%s: %d elements: %s is chosen, expected %s", tune, count, got, want[i])
				}
				in := contributionBytes(coll.Int32, coll.Sum, g.rank, 3, count)
				if _, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(in), one(in)); f != nil {
					return f
				}
				if string(in) != string(reducedBytes(coll.Int32, coll.Sum, 3, count)) {
					return fmt.Errorf("%s: %d elements: wrong", tune, count)
				}
			}
			return nil
		})
	}
}

// This test forces each method of attaching. In one process all of them return the existing mapping; tests/go tests
// them between processes.
func TestAttachForced(t *testing.T) {
	for _, method := range []string{"proc", "scm", "tmpfs", "scm,tmpfs"} {
		t.Run(method, func(t *testing.T) {
			dir := t.TempDir()
			w := newWorldWith(t, 3, opTimeout, options{"shm_attach": method, "shm_dir": dir, "arena_size": "64M"})
			if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
				t.Errorf("Create left %v in the directory (%v)", left, err)
			}
			w.each(func(g *Group) error {
				if f := sum(g, 30_000); f != nil { // more of the arena
					return f
				}
				if own := g.own != nil; own != (method == "tmpfs") {
					return fmt.Errorf("an arena of the group's own: %t", own)
				}
				return asError(sum(g, 1))
			})
		})
	}
}

// A group that maps files frees everything that it needs in the process, which has room for only a few such groups at a
// time.
func TestFilesOfManyGroups(t *testing.T) {
	quick.Skip(t, "as many groups as a process may have arenas; TestSocketsOfManyGroups makes fewer")
	dir := t.TempDir()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	var before int
	for round := range runner.MaxBells {
		w := newWorldWith(t, 2, opTimeout, options{"shm_attach": "tmpfs", "shm_dir": dir, "arena_size": "64M"})
		async := make([]runner.Work, 2)
		w.each(func(g *Group) error { // so the engine may sleep on the arena's bell when the arena is removed
			var f *coll.Failure
			async[g.rank], f = sumAsync(g, 30_000)
			return asError(f)
		})
		w.each(func(g *Group) error { return asError(finish(async[g.rank])) })
		w.destroy()
		Get().sweep()
		switch n := open(); round {
		case 3:
			before = n
		case runner.MaxBells - 1:
			if n > before+2 {
				t.Errorf("%d descriptors, after 4 groups there were %d", n, before)
			}
		}
	}
}

func TestNoWayToTheMemory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no", "such", "directory")
	expectRefused(t, 3, func(int) options { return options{"shm_attach": "tmpfs", "shm_dir": missing} },
		"no shared memory", missing)
	if _, err := os.Stat(missing); err == nil {
		t.Error("the directory was made")
	}
}
