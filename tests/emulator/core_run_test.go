package emulator_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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

// TestCore runs all tests of the core, those of the checker among them. A test whose order is up to a schedule runs under many
// of them, each in a process of its own, and prints the seed with which it fails.
func TestCore(t *testing.T) {
	b := newCheckerBuild(t)
	core, tests := names(t, "core"), names(t, "core_test")
	b.compile(t, "core", core)
	b.compile(t, "core_test", tests)
	words := slices.Clone(b.flags)
	for _, name := range append(core, tests...) {
		words = append(words, name+".o")
	}
	if output, err := b.compiler(append(words, "-o", "core_test_program")...); err != nil {
		t.Fatalf("linking: %v\n%s", err, output)
	}
	ctx, cancel := context.WithTimeout(t.Context(), checkerBound)
	defer cancel()
	if output, err := exec.CommandContext(ctx, filepath.Join(b.dir, "core_test_program")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output[max(0, len(output)-6000):])
	}
}
