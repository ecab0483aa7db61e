package shmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMemoryReturnsOnFreeAndComesBackZero(t *testing.T) {
	for _, kind := range []Kind{Memfd, Tmpfs} {
		t.Run(string(kind), func(t *testing.T) {
			a := newArena(t, kind, "/dev/shm")
			before := bytesHeld(t, a)
			if before != a.page {
				t.Errorf("a new arena holds %d bytes, expected one page", before)
			}
			const n = 40<<20 + 1 // more than two steps of reserving, and not whole pages
			r := alloc(t, a, n, 2<<20)
			if r.Len != roundUp(n, a.page) || r.Off%(2<<20) != 0 {
				t.Errorf("got %+v", r)
			}
			if got := bytesHeld(t, a); got != before+r.Len {
				t.Errorf("%d bytes held after allocating %d", got-before, r.Len)
			}
			if !allZero(a.Bytes(r)) {
				t.Error("fresh memory is not zero")
			}
			copy(a.Bytes(r), bytes.Repeat([]byte{1}, int(r.Len)))
			require.NoError(t, a.Free(r))
			if got := bytesHeld(t, a); got != before || a.InUse() != 0 {
				t.Errorf("%d bytes held, %d in use after Free", got-before, a.InUse())
			}
			a.Bytes(r)[5] = 9 // as the late write of a peer
			if again := alloc(t, a, n, 2<<20); again != r || !allZero(a.Bytes(again)) {
				t.Errorf("reuse gave %+v, zero: %v", again, allZero(a.Bytes(again)))
			}
		})
	}
}

func TestOldKernelsAreServedToo(t *testing.T) {
	real := populate
	populate = func([]byte) error { return unix.EINVAL }
	defer func() { populate = real }()
	a := newArena(t, Memfd, "")
	r := alloc(t, a, 8<<20, 0)
	resident := make([]byte, r.Len/a.page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(a.Mapping().Base())+uintptr(r.Off), uintptr(r.Len), uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
		t.Fatal(errno)
	}
	if slices.Contains(resident, 0) || !allZero(a.Bytes(r)) {
		t.Error("pages are missing, or not zero")
	}
}

func TestAllocAndFreeRefuseNonsense(t *testing.T) {
	a := newArena(t, Memfd, "")
	for _, c := range [][2]int64{{0, 0}, {-1, 0}, {1, 3}, {1, -4096}, {testSize + 1, 0}, {1, testSize * 2}} {
		if _, err := a.Alloc(c[0], c[1]); err == nil {
			t.Errorf("Alloc(%d, %d) was accepted", c[0], c[1])
		}
	}
	_, err := a.Alloc(testSize, 0) // the header takes a page
	refused(t, err, "64.0 MiB wanted", "SAGECOMM_ARENA_SIZE")
	r := alloc(t, a, 100, 0)
	refused(t, a.Free(Range{r.Off, r.Len * 2}), "not an allocated range")
	refused(t, a.Free(Range{0, a.page}), "not an allocated range") // the header
	if err := a.Free(r); err != nil {
		t.Error(err)
	}
	refused(t, a.Free(r), "freed twice")
}

func TestNewArenaRefusesNonsense(t *testing.T) {
	before := openDescriptors(t)
	for _, c := range []struct {
		kind  Kind
		size  int64
		dir   string
		parts []string
	}{
		{Memfd, 1, "", []string{"SAGECOMM_ARENA_SIZE"}},
		{"hugetlb", testSize, "", []string{"hugetlb"}},
		{Tmpfs, testSize, "/nonexistent", []string{"/nonexistent", "no such file", "SAGECOMM_SHM_DIR"}},
	} {
		_, err := NewArena(c.kind, c.size, c.dir)
		refused(t, err, c.parts...)
	}
	if got := openDescriptors(t); got != before {
		t.Errorf("%d descriptors before, %d after", before, got)
	}
}

// An arena beyond the limit on file sizes is an error. Without the check, SIGXFSZ would end the process.
func TestLimitOnFileSizeIsAnError(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	low := unix.Rlimit{Cur: 8 << 20, Max: old.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &low))
	_, err := NewArena(Memfd, testSize, "")
	if err2 := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err2 != nil {
		t.Fatal(err2)
	}
	refused(t, err, "64.0 MiB", "8.0 MiB", "ulimit -f")
}

// A full file system is an error at allocation. If Alloc did not reserve pages, SIGBUS would end this test.
func TestFullFileSystemIsAnError(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting a small tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })

	a, err := NewArena(Tmpfs, testSize, dir)
	require.NoError(t, err)
	before := bytesHeld(t, a)
	_, err = a.Alloc(4<<20, 0)
	refused(t, err, "reserve 4.0 MiB", "SAGECOMM_SHM_DIR", "--shm-size")
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v is not ENOSPC", err)
	}
	if got := bytesHeld(t, a); got != before || a.InUse() != 0 {
		t.Errorf("the failed allocation left %d bytes held, %d in use", got-before, a.InUse())
	}
	r := alloc(t, a, 512<<10, 0)
	copy(a.Bytes(r), bytes.Repeat([]byte{1}, int(r.Len)))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "rest"), nil, 0o600))
	rest, err := os.OpenFile(filepath.Join(dir, "rest"), os.O_WRONLY, 0)
	require.NoError(t, err)
	for err == nil {
		_, err = rest.Write(make([]byte, 4096))
	}
	rest.Close()
	_, err = NewArena(Tmpfs, testSize, dir) // not even the header fits
	refused(t, err, "SAGECOMM_SHM_DIR", "no space left")
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if names := files(t, dir); !slices.Equal(names, []string{"rest"}) {
		t.Errorf("left behind: %v", names)
	}
}

func TestUnlinkLeavesTheArenaUsable(t *testing.T) {
	dir := t.TempDir()
	a := newArena(t, Tmpfs, dir)
	d := publish(t, a, File)
	if st, err := os.Stat(d.Path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	for range 2 {
		require.NoError(t, a.Unlink())
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	r := alloc(t, a, 1<<20, 0)
	a.Bytes(r)[0] = 1
	if d := publish(t, a, File); d.Path != "" {
		t.Errorf("still published at %s", d.Path)
	}
}

func TestCloseGivesEverythingBack(t *testing.T) {
	newArena(t, Memfd, "").Close() // makes the runtime open the descriptors that it keeps
	dir := t.TempDir()
	for _, kind := range []Kind{Memfd, Tmpfs} {
		before, beforeMaps := openDescriptors(t), len(mappings.all)
		a, err := NewArena(kind, testSize, dir)
		require.NoError(t, err)
		publish(t, a, SCM)
		for range 2 {
			require.NoError(t, a.Close())
		}
		if got := openDescriptors(t); got != before || len(mappings.all) != beforeMaps || len(files(t, dir)) != 0 {
			t.Errorf("%s: descriptors %d -> %d, mappings %d -> %d, files %v", kind, before, got, beforeMaps, len(mappings.all), files(t, dir))
		}
		_, err = a.Alloc(1, 0)
		refused(t, err, "closed")
		refused(t, a.Free(Range{}), "closed")
		_, err = a.Publish(nil)
		refused(t, err, "closed")
	}
}

func TestSweepRemovesOnlyWhatDeadProcessesLeft(t *testing.T) {
	dir := t.TempDir()
	dead := startOwner(t, ownerConfig{Kind: Tmpfs, Dir: dir, Methods: []Method{File}})
	alive := startOwner(t, ownerConfig{Kind: Tmpfs, Dir: dir, Methods: []Method{File}})
	dead.kill()
	base := filepath.Base(dead.Descriptor.Path)
	_, afterNamespace, _ := strings.Cut(strings.TrimPrefix(base, "sagecomm-"), "-")
	keep := []string{filepath.Base(alive.Descriptor.Path), "sagecomm-1-" + afterNamespace, base + "-more", "sagecomm-x"}
	for _, name := range keep[1:] {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	a := newArena(t, Tmpfs, dir)
	a.Unlink()
	slices.Sort(keep)
	if got := files(t, dir); !slices.Equal(got, keep) {
		t.Errorf("left: %q\nwant: %q", got, keep)
	}
}

func TestNothingIsLeftOfAKilledOwner(t *testing.T) {
	o := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{Proc, SCM}, Fill: 1 << 20})
	mark := o.Descriptor.Socket
	if !strings.Contains(unixSockets(t), mark) {
		t.Fatal("the owner's socket is not in /proc/net/unix: this test would prove nothing")
	}
	m := attach(t, o.Descriptor, Proc)
	o.kill()
	for _, name := range files(t, "/dev/shm") {
		if strings.Contains(name, fmt.Sprintf("-%d-%d-", o.Descriptor.PID, o.Descriptor.StartTime)) {
			t.Errorf("/dev/shm/%s is left", name)
		}
	}
	if strings.Contains(unixSockets(t), mark) {
		t.Error("the socket is left")
	}
	if m.Bytes(o.Range)[0] != 0x5a { // a survivor may still read
		t.Error("the mapping of a survivor lost its bytes")
	}
	if err := m.Release(); err != nil {
		t.Error(err)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func unixSockets(t *testing.T) string {
	t.Helper()
	list, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	return string(list)
}

// Memory from AllocLazily is zero, and takes pages from the system only when it is written.
func TestLazyMemoryTakesNoPagesBeforeItIsWritten(t *testing.T) {
	a, err := NewArena(Memfd, 64<<20, "")
	require.NoError(t, err)
	defer a.Close()
	blocks := func() int64 {
		var s unix.Stat_t
		require.NoError(t, unix.Fstat(a.fd, &s))
		return s.Blocks * 512
	}
	before := blocks()
	r, err := a.AllocLazily(1<<20, 4096)
	require.NoError(t, err)
	if took := blocks() - before; took != 0 {
		t.Errorf("1 MiB of unwritten memory takes %d bytes", took)
	}
	a.Bytes(r)[4096*3] = 1
	if took := blocks() - before; took <= 0 || took > 64<<10 {
		t.Errorf("one written page takes %d bytes", took)
	}
	require.NoError(t, a.Free(r))
	if took := blocks() - before; took != 0 {
		t.Errorf("%d bytes stay after the range is free", took)
	}
}
