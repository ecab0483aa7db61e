package ranks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// environment is one line of the tables in docs/reliability.md: where ranks 0 and 1 are, and what comes of it.
type environment struct {
	name    string
	at      func(t *testing.T, rank int) *place
	options map[string]string
	before  string    // a command that the ranks carry out first
	ways    [2]string // how each rank maps the other's memory
	fails   []string  // no group is made, and the error has all these texts
	blind   bool      // a death is noticed by time-out only
	warned  bool      // a warning says that a file is used
}

const (
	newUser  = syscall.CLONE_NEWUSER
	newPID   = syscall.CLONE_NEWPID
	newNet   = syscall.CLONE_NEWNET
	stranger = 65534 // a user that is not root
)

var (
	noMemfd   = []refused{{Call: unix.SYS_MEMFD_CREATE, Error: uint32(unix.EPERM)}}
	ownShm    = []mount{{Source: "tmpfs", Target: "/dev/shm", Type: "tmpfs"}}
	tmpfsOnly = map[string]string{"shm_attach": "tmpfs"}
)

// both puts each rank at a place of its own, of the same kind.
func both(p place) func(*testing.T, int) *place {
	return func(*testing.T, int) *place { return &p }
}

// second leaves rank 0 where the test is and puts rank 1 at a place.
func second(p place) func(*testing.T, int) *place {
	return func(_ *testing.T, rank int) *place {
		if rank == 0 {
			return nil
		}
		return &p
	}
}

// shmOf gives both ranks this common directory as /dev/shm.
func shmOf(dir string, p place) *place {
	p.Mounts = append(slices.Clone(p.Mounts), mount{Source: dir, Target: "/dev/shm"})
	return &p
}

var environments = []environment{
	{name: "nothing special", at: both(place{}), ways: [2]string{"proc", "proc"}},
	{name: "/dev/shm of 64 KB", at: smallShm("64k", place{}), ways: [2]string{"proc", "proc"}},
	{name: "/dev/shm of 64 MB", at: smallShm("64m", place{}), ways: [2]string{"proc", "proc"}},
	{name: "/dev/shm is full", at: fullShm(place{}), ways: [2]string{"proc", "proc"}},
	{name: "/dev/shm of 64 KB, a file is asked for", at: smallShm("64k", place{}), options: tmpfsOnly,
		fails: []string{"has no shared memory: shmem: reserve ", "no space left on device: the file system of SAGECOMM_SHM_DIR is full"}},
	{name: "/dev/shm of 64 MB, a file is asked for", at: smallShm("64m", place{}), options: tmpfsOnly, ways: [2]string{"tmpfs", "tmpfs"}},
	{name: "/dev/shm is full, a file is asked for", at: fullShm(place{}), options: tmpfsOnly,
		fails: []string{"has no shared memory: shmem: create an arena of ", "no space left on device: the file system of SAGECOMM_SHM_DIR is full"}},
	{name: "no memfd_create, EPERM", at: both(place{Refused: noMemfd}), ways: [2]string{"proc", "proc"}, warned: true},
	{name: "no memfd_create, ENOSYS, on one rank", at: second(place{Refused: []refused{{Call: unix.SYS_MEMFD_CREATE, Error: uint32(unix.ENOSYS)}}}),
		ways: [2]string{"proc", "proc"}, warned: true},
	{name: "no memfd_create, /dev/shm of 64 MB", at: smallShm("64m", place{Refused: noMemfd}), ways: [2]string{"proc", "proc"}, warned: true},
	{name: "no memfd_create, /dev/shm of 64 KB", at: smallShm("64k", place{Refused: noMemfd}),
		fails: []string{"has no shared memory: shmem: reserve ", "the file system of SAGECOMM_SHM_DIR is full", "before that, without a file: ", "memfd_create: operation not permitted"}},
	{name: "no pidfd_open", at: both(place{Refused: []refused{{Call: unix.SYS_PIDFD_OPEN, Error: uint32(unix.EPERM)}}}), ways: [2]string{"proc", "proc"}},
	{name: "no pidfd_open, no socket", at: both(place{Namespaces: newNet, Refused: []refused{{Call: unix.SYS_PIDFD_OPEN, Error: uint32(unix.EPERM)}}}),
		ways: [2]string{"proc", "proc"}, blind: true},
	{name: "no /proc", at: both(place{Mounts: []mount{{Target: "/proc", Away: true}}}),
		fails: []string{"has no shared memory: shmem: create an arena of ", "/proc has to be mounted"}},
	{name: "no /proc on one rank", at: second(place{Mounts: []mount{{Target: "/proc", Away: true}}}),
		fails: []string{"rank 1 (host ", "has no shared memory: shmem: create an arena of ", "/proc has to be mounted"}},
	{name: "hidepid", at: both(place{User: stranger, Mounts: []mount{{Source: "proc", Target: "/proc", Type: "proc", Data: "hidepid=2"}}}),
		ways: [2]string{"proc", "proc"}},
	{name: "hidepid, processes that may not be looked into", before: "conceal",
		at:   both(place{User: stranger, Mounts: []mount{{Source: "proc", Target: "/proc", Type: "proc", Data: "hidepid=2"}}}),
		ways: [2]string{"scm", "scm"}},
	{name: "processes that may not be looked into", before: "conceal", at: both(place{User: stranger}), ways: [2]string{"scm", "scm"}},
	{name: "another user", at: second(place{User: stranger}),
		fails: []string{"the shared memory of rank 0 ", "proc: open /proc/", "permission denied (it runs as another user", "scm: process ", "runs as user 0, this one as 65534"}},
	{name: "another pid namespace", at: second(place{Namespaces: newPID, Mounts: []mount{privateProc}}), ways: [2]string{"scm", "scm"}},
	{name: "both in pid namespaces of their own", at: both(place{Namespaces: newPID, Mounts: []mount{privateProc}}), ways: [2]string{"scm", "scm"}},
	{name: "a user namespace below, of the same user", at: second(place{Namespaces: newUser}), ways: [2]string{"proc", "scm"}},
	{name: "both in user namespaces of their own, of the same user", at: both(place{Namespaces: newUser}), ways: [2]string{"scm", "scm"}},
	{name: "a user namespace below, of another user", at: second(place{Namespaces: newUser, Outside: 100_000}),
		fails: []string{"the shared memory of rank 0 ", "proc: open /proc/", "permission denied", "scm: process ", "runs as user 65534, this one as 0"}},
	{name: "both in user namespaces of their own, of other users", at: func(_ *testing.T, rank int) *place {
		return &place{Namespaces: newUser, Outside: 100_000 + rank}
	}, fails: []string{"the shared memory of rank 0 ", "the shared memory of rank 1 ", "proc: open /proc/", "runs as user 65534, this one as 0"}},
	{name: "another network namespace", at: second(place{Namespaces: newNet}), ways: [2]string{"proc", "proc"}},
	{name: "other pid and network namespaces, a common directory", at: both(place{Namespaces: newPID | newNet, Mounts: []mount{privateProc}}),
		ways: [2]string{"tmpfs", "tmpfs"}, blind: true, warned: true},
	{name: "no common directory", at: both(place{Mounts: ownShm}), ways: [2]string{"proc", "proc"}},
	{name: "no common directory, a file is asked for", at: both(place{Mounts: ownShm}), options: tmpfsOnly,
		fails: []string{"the shared memory of rank 1 ", "tmpfs: open /dev/shm/sagecomm-", "no such file or directory"}},
	{name: "another pid namespace, no common directory", at: both(place{Namespaces: newPID, Mounts: append([]mount{privateProc}, ownShm...)}),
		ways: [2]string{"scm", "scm"}},
	{name: "nothing in common", at: both(place{Namespaces: newPID | newNet, Mounts: append([]mount{privateProc}, ownShm...)}),
		fails: []string{"the shared memory of rank 1 ", "proc: it is in another pid namespace", "is in another network namespace", "tmpfs: open /dev/shm/sagecomm-"}},
	{name: "a limit on file sizes", at: both(place{FileSize: 64 << 20}),
		fails: []string{"has no shared memory: shmem: create an arena of ", "the limit on file sizes is 64.0 MiB (ulimit -f)"}},
	{name: "a directory on disk, a file is asked for", at: both(place{}), options: map[string]string{"shm_attach": "tmpfs", "shm_dir": "/var/tmp"},
		ways: [2]string{"tmpfs", "tmpfs"}},
	{name: "a file system that cannot reserve", at: both(place{Mounts: []mount{{Source: "ramfs", Target: "/dev/shm", Type: "ramfs"}}}),
		options: tmpfsOnly,
		fails:   []string{"has no shared memory: shmem: create an arena of ", "operation not supported: the file system of SAGECOMM_SHM_DIR cannot reserve space"}},
	{name: "proc is asked for", at: both(place{}), options: map[string]string{"shm_attach": "proc"}, ways: [2]string{"proc", "proc"}},
	{name: "scm is asked for", at: both(place{}), options: map[string]string{"shm_attach": "scm"}, ways: [2]string{"scm", "scm"}},
	{name: "proc is asked for, another pid namespace", at: second(place{Namespaces: newPID, Mounts: []mount{privateProc}}),
		options: map[string]string{"shm_attach": "proc"}, fails: []string{"the shared memory of rank 1 ", "proc: it is in another pid namespace"}},
	{name: "scm is asked for, another network namespace", at: second(place{Namespaces: newNet}),
		options: map[string]string{"shm_attach": "scm"}, fails: []string{"the shared memory of rank 1 ", "is in another network namespace"}},
}

// smallShm gives both ranks a common tmpfs of that size as /dev/shm.
func smallShm(size string, p place) func(*testing.T, int) *place {
	var dir string
	return func(t *testing.T, rank int) *place {
		if rank == 0 {
			dir = smallTmpfs(t, size)
		}
		return shmOf(dir, p)
	}
}

// fullShm gives both ranks a tmpfs without a free page as /dev/shm.
func fullShm(p place) func(*testing.T, int) *place {
	var dir string
	return func(t *testing.T, rank int) *place {
		if rank == 0 {
			dir = smallTmpfs(t, "1m")
			fill(t, dir)
		}
		return shmOf(dir, p)
	}
}

func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "rest"))
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.NoError(t, f.Close())
}

// One for each way to attach, and for each sort of error.
var quickEnvironments = []string{
	"nothing special", "/dev/shm of 64 KB", "no memfd_create, EPERM", "no memfd_create, /dev/shm of 64 KB", "no /proc", "another pid namespace",
	"a user namespace below, of the same user", "other pid and network namespaces, a common directory", "nothing in common",
}

// Every environment ends in a group that can use all its memory, and notices a death, or in one error for all.
func TestEnvironments(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces, mounts and other users need root")
	}
	for _, e := range environments {
		t.Run(e.name, func(t *testing.T) {
			if !slices.Contains(quickEnvironments, e.name) {
				quick.Skip(t, "others have the same ways to attach")
			}
			options := map[string]string{"debug": "INFO"}
			for k, v := range e.options {
				options[k] = v
			}
			list := startAt(t, 2, options, func(rank int) *place { return e.at(t, rank) })
			if e.before != "" {
				succeed(t, all(list, command{Do: e.before}))
			}
			began := time.Now()
			created := all(list, command{Do: "create", Name: "g"})
			if len(e.fails) > 0 {
				e.expectFailure(t, list, created, time.Since(began))
				return
			}
			succeed(t, created)
			succeed(t, all(list, command{Do: "everything"}))
			e.expectDeathNoticed(t, list)
			e.expectWays(t, list)
		})
	}
}

func (e *environment) expectFailure(t *testing.T, list []*process, created []report, took time.Duration) {
	t.Helper()
	for rank, r := range created {
		for _, part := range e.fails {
			if !strings.Contains(r.Error, part) {
				t.Errorf("rank %d: %q is not in %q", rank, part, r.Error)
			}
		}
		if r.Error != created[0].Error {
			t.Errorf("rank %d says %q, rank 0 %q", rank, r.Error, created[0].Error)
		}
	}
	t.Log(created[0].Error)
	if took > opTimeout/3 {
		t.Errorf("it took %v", took)
	}
	for _, p := range list { // the processes still end without an error
		if err := p.end(); err != nil {
			t.Errorf("rank %d: %v\n%s", p.rank, err, &p.stderr)
		}
	}
	nothingLeft(t, "/dev/shm", list)
}

// expectDeathNoticed kills rank 1.
func (e *environment) expectDeathNoticed(t *testing.T, list []*process) {
	t.Helper()
	list[0].order(command{Do: "loop"})
	list[1].order(command{Do: "loop"})
	list[0].answer("looping")
	list[1].answer("looping")
	if e.blind {
		for _, p := range list {
			_ = p.cmd.Process.Kill()
		}
	} else {
		killed := time.Now()
		_ = list[1].cmd.Process.Kill()
		r := list[0].answer("loop")
		if f := r.Failure; f == nil || f.Status != coll.PeerFailure || f.Rank != 1 {
			t.Errorf("after the death of rank 1: %+v", f)
		}
		measure(t, "the death of rank 1 is known", r.At.Sub(killed), bound)
		_ = list[0].close()
	}
	for _, p := range list {
		_ = p.end()
	}
}

// expectWays checks the output of the ranks. Requires: they have ended.
func (e *environment) expectWays(t *testing.T, list []*process) {
	t.Helper()
	for rank, p := range list {
		said := p.stderr.String()
		if want := fmt.Sprintf("shared memory (%s): ranks [%d]", e.ways[rank], 1-rank); !strings.Contains(said, want) {
			t.Errorf("rank %d did not say %q:\n%s", rank, want, said)
		}
		if got := strings.Count(said, "noticed by timeout only") == 1; got != e.blind {
			t.Errorf("rank %d: a warning that deaths are not noticed: %v\n%s", rank, got, said)
		}
		if got := strings.Count(said, "uses a file in /dev/shm, as others may") == 1; got != e.warned {
			t.Errorf("rank %d: a warning that a file is used: %v\n%s", rank, got, said)
		}
	}
}

// The table of docs/reliability.md has a line for each environment with its outcome here, and no other line.
func TestEnvironmentsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/reliability.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| environment |")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("there is no table of environments")
	}
	lines := map[string]string{}
	for _, line := range strings.Split(table, "\n")[2:] {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		lines[name] = rest
	}
	for _, e := range environments {
		line, found := lines[e.name]
		delete(lines, e.name)
		want := []string{"works: `" + e.ways[0] + "`", "`" + e.ways[1] + "`"}
		if len(e.fails) > 0 {
			last, _, _ := strings.Cut(e.fails[len(e.fails)-1], "64.0 MiB")
			want = []string{"error", last}
		}
		for _, part := range want {
			if !found || !strings.Contains(line, part) {
				t.Errorf("%s: %q is not in its line %q", e.name, part, line)
			}
		}
		if got := strings.Contains(line, "by time-out"); got != e.blind {
			t.Errorf("%s: by time-out: %v", e.name, got)
		}
		if got := strings.Contains(line, "with a warning"); got != e.warned {
			t.Errorf("%s: with a warning: %v", e.name, got)
		}
	}
	for name := range lines {
		t.Errorf("%s: no test makes this environment", name)
	}
}
