package ranks

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
)

// disagreement returns a text that says how ranks differ on why there is no group, or which part of the reason is missing.
func disagreement(created []report, parts ...string) error {
	for rank, r := range created {
		if r.Error != created[0].Error {
			return fmt.Errorf("rank %d says %q, rank 0 %q", rank, r.Error, created[0].Error)
		}
		for _, part := range parts {
			if !strings.Contains(r.Error, part) {
				return fmt.Errorf("rank %d: %q is not in %q", rank, part, r.Error)
			}
		}
	}
	return nil
}

// ended returns the failure of a group, which must be the same on all ranks.
func ended(t *testing.T, reports []report) *coll.Failure {
	t.Helper()
	first := reports[0].Failure
	for rank, r := range reports {
		if r.Failure == nil || first == nil || *r.Failure != *first {
			t.Fatalf("rank %d: %+v, rank 0: %+v", rank, r.Failure, first)
		}
	}
	return first
}

// shortOfMemory expects a failure that names the rank that got no memory, and the remedy.
func shortOfMemory(t *testing.T, list []*process, f *coll.Failure, rank int, parts ...string) {
	t.Helper()
	parts = append(parts, fmt.Sprintf("rank %d (host ", rank), "shmem: reserve ", "no space left on device")
	for _, part := range parts {
		if f.Status != coll.System || f.Rank != rank || f.PID != list[rank].cmd.Process.Pid || !strings.Contains(f.Message, part) {
			t.Fatalf("%+v: expected that rank %d has no memory, and %q", f, rank, part)
		}
	}
	t.Log(f.Message)
}

// Groups take the large slots and the fifos at first use. If one rank gets no memory for them, all ranks raise an error with
// that rank, the reason and the remedy, and no memory stays taken.
func TestMemoryThatIsMissingLaterOnOneRank(t *testing.T) {
	const short = 1
	for _, c := range []struct {
		name, op string
		use      func(list []*process) []report
	}{
		{"large slots", "cannot go on with all_reduce: ", func(list []*process) []report { return all(list, command{Do: "once", Elements: 1_000_000}) }},
		{"ring", "cannot go on with send: ", func(list []*process) []report {
			list[short].order(command{Do: "send", Rank: 0})
			list[0].order(command{Do: "receive", Rank: short})
			list[2].order(command{Do: "receive", Rank: short})
			return []report{list[0].answer("receive"), list[short].answer("send"), list[2].answer("receive")}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := start(t, 3, map[string]string{"shm_dir": t.TempDir()})
			before := all(list, command{Do: "count"})
			create(t, list, "g", 0)
			succeed(t, all(list, command{Do: "loop", Ops: 20, Elements: 10}))
			list[short].order(command{Do: "refuse"})
			succeed(t, []report{list[short].answer("refuse")})
			succeed(t, all(list, command{Do: "loop", Ops: 20, Elements: 10}))
			began := time.Now()
			shortOfMemory(t, list, ended(t, c.use(list)), short, c.op, "a memory control group does not allow more: free memory or raise the limit")
			measure(t, "the shortage is known", time.Since(began), bound)
			ended(t, all(list, command{Do: "once"}))
			succeed(t, all(list, command{Do: "destroy"}))
			// The next group frees the memory of the last one, and fails: there is no memory, not even for a shared block.
			if err := disagreement(all(list, command{Do: "create", Name: "h"}), "rank 1 (host ", "has no shared memory: shmem: "); err != nil {
				t.Error(err)
			}
			for rank, p := range list {
				p.order(command{Do: "held"})
				if now := p.answer("held"); now.Held != before[rank].Held {
					t.Errorf("rank %d holds %d bytes, before %d", rank, now.Held, before[rank].Held)
				}
				if rank != short {
					p.expectReleased(before[rank].FDs, before[rank].Goroutines)
				}
				if err := p.end(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// In a directory with room for the shared blocks and the large slots of one rank, the second rank gets no memory.
func TestFileSystemThatIsFullLater(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	dir := smallTmpfs(t, "2m")
	list := start(t, 2, map[string]string{"shm_attach": "tmpfs", "shm_dir": dir})
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "loop", Ops: 20, Elements: 10}))
	f := ended(t, all(list, command{Do: "once", Elements: 1_000_000}))
	if f.Rank < 0 || f.Rank > 1 {
		t.Fatalf("%+v", f)
	}
	shortOfMemory(t, list, f, f.Rank, "cannot go on with all_reduce: ", "the file system of SAGECOMM_SHM_DIR is full: enlarge it (docker run --shm-size)")
	succeed(t, all(list, command{Do: "destroy"}))
	create(t, list, "h", 0) // there is room again
	succeed(t, all(list, command{Do: "loop", Ops: 20, Elements: 10}))
	succeed(t, all(list, command{Do: "destroy"}))
	for _, p := range list {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bfree != st.Blocks {
		t.Errorf("%d of %d blocks are free, %v", st.Bfree, st.Blocks, err)
	}
}

// The first group of a process needs the poller of the Go runtime. Without descriptors for it the runtime would end the
// process; the library must return an error instead.
func TestFirstGroupWithFewDescriptors(t *testing.T) {
	works := 0
	for free := range 10 {
		p := start(t, 1, nil)[0]
		p.order(command{Do: "starve", Ops: free})
		p.answer("starve")
		p.order(command{Do: "solo"})
		switch r := p.answer("solo"); {
		case r.Error == "":
			works++
		case !strings.Contains(r.Error, "too many open files; let processes open more files (ulimit -n)"):
			t.Errorf("%d descriptors free: %q", free, r.Error)
		}
		if err := p.end(); err != nil {
			t.Errorf("%d descriptors free: %v", free, err)
		}
	}
	if works == 0 || works == 10 {
		t.Errorf("%d of 10 groups were made", works)
	}
}

// A process with few descriptors left joins the group, perhaps without a watch over its peers, or all ranks get an error that
// says why there is no group.
func TestFewDescriptorsLeft(t *testing.T) {
	for _, first := range []bool{true, false} {
		works := 0
		for free := range 9 {
			list := start(t, 2, map[string]string{"shm_dir": t.TempDir()})
			if !first {
				list[0].order(command{Do: "count"}) // makes the arena
				list[0].answer("count")
			}
			list[0].order(command{Do: "starve", Ops: free})
			list[0].answer("starve")
			created := all(list, command{Do: "create", Name: "g", Timeout: 10 * time.Second})
			t.Logf("first group: %v, %d descriptors free: %q", first, free, created[0].Error)
			if created[0].Error != "" || created[1].Error != "" {
				if err := disagreement(created, "too many open files", "(ulimit -n)"); err != nil {
					t.Errorf("first group: %v, %d descriptors free: %v", first, free, err)
				}
				continue
			}
			works++
			succeed(t, all(list, command{Do: "everything"}))
		}
		if works == 0 || works == 9 {
			t.Errorf("first group: %v: %d of 9 groups were made", first, works)
		}
	}
}

// A limit on address space leaves room for no arena, for the rank's own, or for that of the peer too.
func TestLimitOnAddressSpace(t *testing.T) {
	for _, c := range []struct {
		name  string
		more  int // MiB
		arena string
		parts []string // parts of the error; none if the group works
	}{
		{"none for the own arena", 600, "1G", []string{"rank 1 (host ", "has no shared memory: shmem: create an arena of 1024.0 MiB",
			"map 1024.0 MiB of address space: cannot allocate memory: is there a limit on address space (ulimit -v)? A smaller SAGECOMM_ARENA_SIZE needs less"}},
		{"none for the peer's", 1600, "1G", []string{"rank 1: the shared memory of rank 0 ", "map 1024.0 MiB of address space: cannot allocate memory"}},
		{"enough for smaller ones", 600, "32M", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := start(t, 2, map[string]string{"arena_size": c.arena, "shm_dir": t.TempDir()})
			list[1].order(command{Do: "confine", Elements: c.more})
			succeed(t, []report{list[1].answer("confine")})
			created := all(list, command{Do: "create", Name: "g"})
			if c.parts != nil {
				if err := disagreement(created, c.parts...); err != nil {
					t.Error(err)
				}
				return
			}
			succeed(t, created)
			succeed(t, all(list, command{Do: "everything"}))
		})
	}
}

// A memory control group that leaves room for a shared block, and not for large slots: a refusal in time, where the kernel would
// have killed the process.
func TestLimitOfAMemoryControlGroup(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory at any time, and the system ends who has none")
	}
	group := newMemoryGroup(t)
	list := start(t, 2, map[string]string{"shm_dir": t.TempDir()})
	succeed(t, all(list, command{Do: "count"})) // the program's own memory is there
	create(t, list, "g", 0)
	succeed(t, all(list, command{Do: "once", Elements: 8})) // the same code, so that its pages are there as well
	group.put(t, list[1].cmd.Process.Pid)
	group.limit(t, 1000<<10) // of the 1 MiB of the large slots; the rest is for what the runtime takes meanwhile
	f := ended(t, all(list, command{Do: "once", Elements: 30_000}))
	for _, part := range []string{"cannot go on with all_reduce: ", "shmem: reserve ", "are left in /sys/fs/cgroup", "free memory"} {
		if f.Status != coll.System || f.Rank != 1 || !strings.Contains(f.Message, part) {
			t.Errorf("%+v: expected that rank 1 has no memory, and %q", f, part)
		}
	}
	group.lift(t)
	t.Log(f.Message)
}

// memoryGroup is a control group of either version.
type memoryGroup struct{ dir, max, current, procs string }

func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()
	for _, g := range []memoryGroup{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "cgroup.procs"},
		{"/sys/fs/cgroup", "memory.max", "memory.current", "cgroup.procs"},
	} {
		g.dir = filepath.Join(g.dir, "ranks-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(g.dir, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { _ = unix.Rmdir(g.dir) })
		if _, err := os.Stat(filepath.Join(g.dir, g.max)); err == nil {
			return &g
		}
	}
	t.Skip("no memory control group can be made here")
	return nil
}

func (g *memoryGroup) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0); err != nil {
		t.Skipf("a memory control group cannot be set up: %v", err)
	}
}

func (g *memoryGroup) put(t *testing.T, pid int) { g.write(t, g.procs, strconv.Itoa(pid)) }

// limit allows so many bytes more than are used.
func (g *memoryGroup) limit(t *testing.T, more int64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.current))
	require.NoError(t, err)
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	require.NoError(t, err)
	g.write(t, g.max, strconv.FormatInt(used+more, 10))
}

func (g *memoryGroup) lift(t *testing.T) { g.write(t, g.max, strconv.FormatInt(1<<40, 10)) }
