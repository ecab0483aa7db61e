package observe_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

func TestWhereDumpsGo(t *testing.T) {
	for _, c := range []struct {
		option, want string
		environ      []string
	}{
		{"", "", nil},
		{"", "/a/rank_", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_"}},
		{"", "/b", []string{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/b", "TORCH_FR_DUMP_ON_TIMEOUT=1"}},
		{"", "", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_", "TORCH_NCCL_DUMP_ON_TIMEOUT=0"}},
		{"none", "", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_"}},
		{"/c/", "/c/", []string{"TORCH_FR_DUMP_TEMP_FILE=/a/rank_", "TORCH_FR_DUMP_ON_TIMEOUT=0"}},
	} {
		s, err := env.Resolve(nil, map[string]string{"fr_dump": c.option})
		require.NoError(t, err)
		if got := observe.DumpPrefix(s, c.environ); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A process may run as root: a file is never put in the place of a device, a fifo or a directory.
func TestFilesReplaceRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, 1, nil)
	defer w.destroy()
	for name, make := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, make(path+"0"))
		if err := observers().Dump(path); err == nil || !strings.Contains(err.Error(), path+"0 cannot be written: it is no regular file") {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(path + "0"); err != nil || info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestDumpAtASignal(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, 1, options{"fr_dump": dir + "/rank_", "fr_signal": "usr2"})
	if f := sum(w.groups[0], 2); f != nil {
		t.Fatal(f)
	}
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGUSR2))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(dir + "/rank_0"); err == nil {
			if !strings.Contains(string(text), "c10d:all_reduce") {
				t.Errorf("%q", text)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no dump")
		}
	}
	if left, _ := filepath.Glob(dir + "/.*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDumpWithoutAPlace(t *testing.T) {
	w := newWorld(t, 1, nil)
	if err := observers().Dump(""); err == nil || !strings.Contains(err.Error(), "SAGECOMM_FR_DUMP") {
		t.Errorf("%v", err)
	}
	if err := observers().Dump(filepath.Join(t.TempDir(), "missing", "rank_")); err == nil {
		t.Error("a directory that is not there is no error")
	}
	w.destroy()
	if err := observers().Dump(filepath.Join(t.TempDir(), "rank_")); err == nil || !strings.Contains(err.Error(), "no group") {
		t.Errorf("%v", err)
	}
}

// A link to a file stays a link: the file that it names is replaced.
func TestFilesReplaceWhatALinkNames(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, 1, nil)
	defer w.destroy()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	require.NoError(t, os.Symlink(target, link+"0"))
	require.NoError(t, observers().Dump(link))
	if info, err := os.Lstat(link + "0"); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if text, err := os.ReadFile(target); err != nil || len(text) == 0 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// fakeGroup is a group of four ranks, of which only the numbers of the last collectives are known, by lane and rank.
type fakeGroup struct {
	observe.Group
	last [runner.Lanes][]uint64
}

func (g fakeGroup) Header() *observe.Header { return &observe.Header{Rank: 0, Size: 4} }
func (g fakeGroup) Dead() []int             { return nil }
func (g fakeGroup) Lanes() []observe.Lane   { return []observe.Lane{{Run: fakeRun{last: g.last}}} }

type fakeRun struct {
	observe.Run
	last [runner.Lanes][]uint64
}

func (r fakeRun) LastIn(lane runner.Lane, rank int) (runner.Announced, bool) {
	return runner.Announced{Sequence: r.last[lane][rank]}, true
}

// The ranks that have not begun an operation are those of its lane, whatever they did in the other one.
func TestRanksThatCannotWriteTheirDumps(t *testing.T) {
	g := fakeGroup{last: [runner.Lanes][]uint64{{9, 9, 9, 8}, {5, 4, 5, 0}}}
	for _, c := range []struct {
		f    coll.Failure
		want []int
	}{
		{coll.Failure{Status: coll.Timeout, Rank: 1, Sequence: 5, OnDevice: true}, []int{1, 3}},
		{coll.Failure{Status: coll.Timeout, Rank: 3, Sequence: 9}, []int{3}},
		{coll.Failure{Status: coll.PeerFailure, Rank: 2, Sequence: 9}, []int{2}},
		{coll.Failure{Status: coll.Mismatch, Rank: 2, Sequence: 9}, nil},
	} {
		if got := observe.Silent(g, &c.f); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, expected %v", c.f, got, c.want)
		}
	}
}
