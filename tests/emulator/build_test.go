// Package emulator_test builds and runs the tests of the emulator, which are C++ programs.
package emulator_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const runBound = 15 * time.Minute // of one run, on a machine that has much else to do; each names the test that it is in

// common is precompiled: reading these headers takes longer than compiling most sources.
const common = `#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>
`

// A probe tells whether programs with a sanitizer run here. With an argument it leaks memory.
const probe = `#include <cstdlib>
void *volatile kept;
int main(int count, char **) {
  if (count > 1) kept = malloc(1000);
  kept = nullptr;
  return 0;
}
`

// All builds have these.
var commonFlags = []string{"-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"}

// build is a copy of the core and its tests, with the objects made of it.
type build struct {
	dir   string
	flags []string
}

func newBuild(t *testing.T, flags ...string) *build {
	t.Helper()
	b := &build{t.TempDir(), commonFlags}
	for _, pattern := range []string{"core/*.[ch]pp", "core/*.h", "core_test/*.[ch]pp"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(list), err)
		}
		for _, name := range list {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			b.write(t, name, string(text))
		}
	}
	b.write(t, "probe.cpp", probe)
	b.write(t, "common.hpp", common)
	// A failure here is a fault of the tests. Only what the flags add may be missing on a machine.
	if output, err := b.compiler("probe.cpp", "-o", "probe"); err != nil {
		t.Fatalf("a compiler for C++20 is needed: %v\n%s", err, output)
	}
	b.flags = slices.Concat(commonFlags, flags)
	if output, err := b.compiler("probe.cpp", "-o", "probe"); err != nil {
		t.Skipf("the compiler cannot build with %v: %v\n%s", flags, err, output)
	}
	if output, err := b.compiler("-x", "c++-header", "common.hpp", "-o", "common.hpp.gch"); err != nil {
		t.Fatalf("precompiling: %v\n%s", err, output)
	}
	return b
}

func (b *build) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(b.dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// compiler runs the C++ compiler with the flags of the build.
func (b *build) compiler(args ...string) (string, error) {
	cxx := strings.Fields(os.Getenv("CXX"))
	if len(cxx) == 0 {
		cxx = []string{"g++"}
	}
	cmd := exec.Command(cxx[0], slices.Concat(cxx[1:], b.flags, args)...)
	cmd.Dir = b.dir
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// compile makes objects of the named sources, two at a time.
func (b *build) compile(t *testing.T, folder string, names []string) {
	t.Helper()
	var group sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, name := range names {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			source := folder + "/" + name + ".cpp"
			if output, err := b.compiler("-include", "common.hpp", "-c", source, "-o", name+".o"); err != nil {
				t.Errorf("%s: %v\n%s", name, err, output)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// link makes the program of the named objects.
func (b *build) link(t *testing.T, names ...string) {
	t.Helper()
	var words []string
	for _, name := range names {
		words = append(words, name+".o")
	}
	if output, err := b.compiler(append(words, "-o", "program")...); err != nil {
		t.Fatalf("linking: %v\n%s", err, output)
	}
}

// run runs a command with additions to the environment. The command begins with the program, or with what starts it.
func run(t *testing.T, environment, command []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.WaitDelay = 10 * time.Second // children of the program may hold its output open
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs: no end after %v", runBound)
	}
	return string(output), err
}

func (b *build) path(name string) string { return filepath.Join(b.dir, name) }

// names returns the sources of a folder without their ending.
func names(t *testing.T, folder string) (list []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.cpp"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d sources, %v", folder, len(paths), err)
	}
	for _, path := range paths {
		list = append(list, strings.TrimSuffix(filepath.Base(path), ".cpp"))
	}
	return list
}
