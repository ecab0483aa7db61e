package ranks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/bootstrap"
)

// place is what a rank's surroundings differ in from those of the test. The namespaces are made with the process; the
// rest it does itself before it starts itself once more, so that the library finds all as it is to be.
type place struct {
	Namespaces uintptr // CLONE_NEW*
	Outside    int     // with CLONE_NEWUSER: the user and group outside that root is inside
	User       int     // user and group that it becomes; 0: none
	Mounts     []mount // in its own mount namespace, in this order
	Refused    []refused
	FileSize   uint64 // RLIMIT_FSIZE; 0: as it is
}

type mount struct {
	Source, Target, Type, Data string
	Away                       bool // it is unmounted
}

// refused is a system call that the filter lets fail.
type refused struct {
	Call  uint32
	Error uint32
	Plain bool // only where the second argument is 0: fallocate that reserves
}

// privateProc is what a container of its own pid namespace has.
var privateProc = mount{Source: "proc", Target: "/proc", Type: "proc"}

const placedVariable = "RANKS_PLACED" // set in the process that is where it is to be

func (p *place) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: p.Namespaces}
	if len(p.Mounts) > 0 {
		a.Cloneflags |= syscall.CLONE_NEWNS
	}
	if p.Namespaces&syscall.CLONE_NEWUSER != 0 {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: p.Outside, Size: 1}}
		a.GidMappings = a.UidMappings
		a.Credential = &syscall.Credential{NoSetGroups: true} // root there
	}
	return a
}

// settle sets up the place of this process and starts the program again there.
func (p *place) settle() error {
	runtime.LockOSThread() // user and filter are a thread's, and the program's that it starts
	if len(p.Mounts) > 0 {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("keep mounts private: %w", err)
		}
	}
	program, err := os.Executable() // /proc may go
	if err != nil {
		return err
	}
	for _, m := range p.Mounts {
		if err := m.do(); err != nil {
			return fmt.Errorf("mount %+v: %w", m, err)
		}
	}
	if p.FileSize > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: p.FileSize, Max: p.FileSize}); err != nil {
			return err
		}
	}
	if p.User > 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(p.User), syscall.Setuid(p.User)); err != nil {
			return err
		}
	}
	for _, r := range p.Refused {
		if err := r.install(); err != nil {
			return err
		}
	}
	return unix.Exec(program, os.Args, append(os.Environ(), placedVariable+"=1"))
}

func (m mount) do() error {
	switch {
	case m.Away:
		return unix.Unmount(m.Target, unix.MNT_DETACH)
	case m.Type == "":
		return unix.Mount(m.Source, m.Target, "", unix.MS_BIND, "")
	default:
		return unix.Mount(m.Source, m.Target, m.Type, 0, m.Data)
	}
}

// install installs a seccomp filter for all threads of the process.
func (r refused) install() error {
	const number, architecture, second = 0, 4, 16 + 8 // offsets in struct seccomp_data; little endian
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if arch == 0 {
		return errors.New("no seccomp filter for this architecture")
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	equal := func(k uint32, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: otherwise, K: k}
	}
	program := []unix.SockFilter{load(architecture), equal(arch, 5), load(number), equal(r.Call, 3), load(second), equal(0, 1),
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | r.Error},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}}
	if !r.Plain {
		program[5] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA}
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// startAt starts each rank at its place; nil is where the test is. All of them, whatever users they are, can read the
// program and meet in the store.
func startAt(t *testing.T, size int, options map[string]string, at func(rank int) *place) []*process {
	t.Helper()
	dir := publicDir(t)
	program := filepath.Join(dir, "program")
	require.NoError(t, copyProgram(program))
	places := make([]*place, size)
	for rank := range size {
		places[rank] = at(rank)
		if places[rank] == nil {
			places[rank] = new(place)
		}
	}
	return startAll(t, size, func(rank int) orders {
		return orders{Rank: rank, Size: size, Dir: dir, Options: options, Place: places[rank]}
	}, func(p *process) {
		p.cmd.Path = program
		p.cmd.SysProcAttr = places[p.rank].attributes()
	})
}

func copyProgram(to string) error {
	if os.Link(os.Args[0], to) == nil {
		return nil
	}
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// publicDir makes a directory that every user can use; t.TempDir() is for the test's own user.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ranks-")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// smallTmpfs mounts a file system of so many bytes that all ranks can use.
func smallTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := publicDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777,size="+size); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// openStore is a store in a directory for ranks of different users. A [bootstrap.FileStore] is its user's own.
type openStore struct{ dir string }

func (s openStore) path(key string) string {
	return filepath.Join(s.dir, strings.ReplaceAll(key, "/", "_"))
}

func (s openStore) Set(key string, value []byte) error {
	f, err := os.CreateTemp(s.dir, "t-*")
	if err != nil {
		return err
	}
	_, err = f.Write(value)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path(key))
	}
	return err
}

func (s openStore) Get(key string, timeout time.Duration) ([]byte, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		value, err := os.ReadFile(s.path(key))
		if !errors.Is(err, os.ErrNotExist) {
			return value, err
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("%s: %w", key, bootstrap.ErrTimeout)
		}
	}
}
