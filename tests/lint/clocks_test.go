package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wallClocks are the files that read a wall clock, and what for. Nothing there decides how long something is waited for.
var wallClocks = map[string]string{
	"internal/runner/ticks.c":           "the origin of the times in records",
	"internal/runner/recorder.go":       "times in records",
	"internal/runner/trace.go":          "times in the trace of a run",
	"internal/observe/status.go":        "times in the answer to `status`",
	"internal/observe/timeline_file.go": "times in a timeline",
	"internal/observe/torch_trace.go":   "times in a dump of the flight recorder",
	"internal/shmem/scm.go":             "a deadline in the past, which ends all calls",
	"internal/bootstrap/client.go":      "a deadline in the past, which ends all calls",
	"torch_ext/sagecomm/_flight.py":     "times in a dump of the flight recorder",
	"torch_ext/sagecomm/_status.py":     "the age of what `status` shows",
}

// Methods of time.Time whose results have no reading of the monotonic clock, and functions that make such times.
var (
	losesMonotonic = []string{"Unix", "UnixNano", "UnixMilli", "UnixMicro", "UTC", "Local", "AddDate"}
	hasNoMonotonic = []string{"time.Date", "time.Parse", "time.ParseInLocation"}
)

// wallClockInC matches what reads a wall clock, or waits until a time of it, in C and C++.
var wallClockInC = regexp.MustCompile(`CLOCK_REALTIME|gettimeofday|timespec_get|system_clock|\btime\((NULL|nullptr|0)\)|pthread_cond_timedwait|sem_timedwait|pthread_mutex_timedlock`)

// wallClockInPython is the same for Python. What prints the time of day may read it.
var wallClockInPython = regexp.MustCompile(`\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|from time import .*\btime\b`)

// A clock that is set, by its user or by NTP, ends no wait early or late: deadlines, times of silence and measured times are differences of
// readings of the monotonic clock.
func TestWallClocksDecideNothing(t *testing.T) {
	met := map[string]bool{}
	for _, tree := range []string{"algo", "cshim", "export", "facade", "fusion", "hccl", "internal", "nccl", "pgbackend", "torch_ext/sagecomm"} {
		err := filepath.WalkDir(filepath.Join("../..", tree), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, _ := strings.CutPrefix(path, "../../")
			for _, where := range wallClocksIn(t, path) {
				met[name] = true
				if wallClocks[name] == "" {
					t.Errorf("%s: %s: a clock that is set would change what follows from it; use time.Now with Sub and Since, or scr_now()", name, where)
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	for name := range wallClocks {
		require.True(t, met[name], "%s reads no wall clock any more", name)
	}
}

// wallClocksIn returns the places of a file at which a wall clock counts.
func wallClocksIn(t *testing.T, path string) (list []string) {
	t.Helper()
	switch filepath.Ext(path) {
	case ".go":
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isWallClock(call) {
				list = append(list, files.Position(n.Pos()).String())
			}
			return true
		})
	case ".c", ".h", ".cpp":
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		list = wallClockInC.FindAllString(string(text), -1)
	case ".py":
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		list = wallClockInPython.FindAllString(string(text), -1)
	}
	return list
}

// isWallClock reports whether a call makes a time without a reading of the monotonic clock, or a number out of a time.
func isWallClock(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if name := method.Sel.Name; name == "Round" || name == "Truncate" { // of a duration they round
		zero, ok := call.Args[0].(*ast.BasicLit)
		return ok && zero.Value == "0"
	}
	return slices.Contains(losesMonotonic, method.Sel.Name) || slices.Contains(hasNoMonotonic, nameOf(method))
}

func TestWhatCountsAsAWallClock(t *testing.T) {
	for text, want := range map[string]bool{"time.Now().UnixNano()": true, "t.Round(0)": true, "time.Unix(0, n)": true, "d.Round(time.Second)": false, "time.Since(t)": false, "now()": false} {
		e, err := parser.ParseExpr(text)
		require.NoError(t, err)
		require.Equal(t, want, isWallClock(e.(*ast.CallExpr)), text)
	}
	require.True(t, wallClockInC.MatchString("clock_gettime(CLOCK_REALTIME, &t);"))
	require.True(t, wallClockInC.MatchString("long at = time(NULL);"))
	require.False(t, wallClockInC.MatchString("clock_gettime(CLOCK_MONOTONIC, &t);"))
	require.True(t, wallClockInPython.MatchString("began = time.time()"))
	require.False(t, wallClockInPython.MatchString("began = time.monotonic()"))
}
