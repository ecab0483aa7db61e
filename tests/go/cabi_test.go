package ranks

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../.."

func words(variable, otherwise string) []string {
	if list := strings.Fields(os.Getenv(variable)); len(list) > 0 {
		return list
	}
	return []string{otherwise}
}

func compile(t *testing.T, compiler []string, args ...string) {
	t.Helper()
	args = append(slices.Clone(compiler[1:]), args...)
	if output, err := exec.Command(compiler[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler[0], strings.Join(args, " "), err, output)
	}
}

// library returns the path of libsagecomm.so: that of the tree if it is newer than its sources, else a fresh one. It is not built with the
// race detector, which would see nothing of the tests that use it.
func library(t *testing.T) string {
	t.Helper()
	if raceDetector {
		t.Skip("the library of C programs is without the race detector")
	}
	built, err := filepath.Abs(filepath.Join(root, "torch_ext/sagecomm/lib/libsagecomm.so"))
	require.NoError(t, err)
	var newest time.Time
	for _, dir := range []string{"algo", "export", "internal", "pgbackend", "go.mod"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			info, err := e.Info()
			if err == nil && info.ModTime().After(newest) {
				newest = info.ModTime()
			}
			return err
		})
		require.NoError(t, err)
	}
	if info, err := os.Stat(built); err == nil && info.ModTime().After(newest) {
		return built
	}
	script, err := filepath.Abs(filepath.Join(root, "export/exports.map"))
	require.NoError(t, err)
	fresh := filepath.Join(t.TempDir(), "libsagecomm.so")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-buildmode=c-shared",
		"-ldflags", "-s -w -extldflags \"-Wl,--version-script="+script+" -Wl,-soname,libsagecomm.so\"", "-o", fresh, "./export")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS="+release(os.Getenv("GOFLAGS")))
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, output)
	}
	return fresh
}

// release adds the tag of a build without the code that serves tests only.
func release(flags string) string {
	if before, tags, has := strings.Cut(flags, "-tags="); has {
		return before + "-tags=release," + tags
	}
	return flags + " -tags=release"
}

// The library has no code that serves tests only. The Go linker drops such functions, but keeps the C code beside them.
func TestNoCodeOfTestsIsLinked(t *testing.T) {
	lib := library(t)
	output, err := exec.Command("nm", "-D", "--undefined-only", lib).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), " malloc@")
	require.NotContains(t, string(output), " waitpid@", "internal/runner/fork_testing.go")
	code, err := os.ReadFile(lib)
	require.NoError(t, err)
	require.False(t, bytes.Contains(code, []byte("it does not last")), "export/store_testing.go")
}

var strict = []string{"-Wall", "-Wextra", "-Werror", "-pedantic"}

func TestHeaderIsValidCAndCPlusPlus(t *testing.T) {
	header := filepath.Join(root, "export/sagecomm.h")
	compile(t, words("CC", "gcc"), append(strict, "-std=c11", "-fsyntax-only", "-x", "c", header)...)
	compile(t, words("CXX", "g++"), append(strict, "-std=c++17", "-fsyntax-only", "-x", "c++", header)...)
}

// A C program uses the library: two processes, no Python, no torch.
func TestCProgram(t *testing.T) {
	lib := library(t)
	program := filepath.Join(t.TempDir(), "two_processes")
	compile(t, words("CC", "gcc"), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", filepath.Join(root, "tests/cabi/two_processes.c"), "-o", program, "-ldl")
	ctx, cancel := context.WithTimeout(t.Context(), hangAfter)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, lib, t.TempDir()).CombinedOutput()
	if err != nil || !bytes.Contains(output, []byte("two processes agree")) {
		t.Errorf("%v\n%s", err, output)
	}
}

// The library exports the ABI only. Exports of the Go runtime would clash with those of another Go library in the process.
func TestOnlyTheABIIsExported(t *testing.T) {
	output, err := exec.Command("nm", "-D", "--defined-only", library(t)).CombinedOutput()
	if err != nil {
		t.Fatalf("nm: %v\n%s", err, output)
	}
	found := false
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		name := fields[len(fields)-1]
		found = found || name == "sagecomm_get_api"
		if !strings.HasPrefix(name, "sagecomm_") {
			t.Errorf("%s is exported", name)
		}
	}
	if !found {
		t.Errorf("sagecomm_get_api is not exported:\n%s", output)
	}
}

// The library needs no vendor's library to be loaded, also where the dynamic linker binds all functions at once. The linker does
// not report a function that internal/lazylink lacks, because go-nvml tells it so.
func TestNoVendorLibraryIsLinked(t *testing.T) {
	lib := library(t)
	output, err := exec.Command("nm", "-D", "--undefined-only", lib).CombinedOutput()
	if err != nil {
		t.Fatalf("nm: %v\n%s", err, output)
	}
	vendors := regexp.MustCompile(`^(cu[A-Z]|nvml|nccl|acl[a-z]*[A-Z]|Hccl|cnrt|cncl|cndev|dcmi)`)
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if name := fields[len(fields)-1]; vendors.MatchString(name) {
			t.Errorf("%s is undefined", name)
		}
	}
	if output, err = exec.Command("readelf", "-d", lib).CombinedOutput(); err != nil {
		t.Fatalf("readelf: %v\n%s", err, output)
	}
	for line := range strings.Lines(string(output)) {
		if strings.Contains(line, "(NEEDED)") && !regexp.MustCompile(`\[(libc|libdl|libpthread|libm|ld-linux.*)\.so`).MatchString(line) {
			t.Errorf("the library needs another one: %s", line)
		}
	}
}
