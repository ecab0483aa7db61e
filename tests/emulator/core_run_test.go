package emulator_test

import (
	"os"
	"os/exec"
	"testing"

	"sagecomm/tests/quick"
)

// runCore builds and runs all tests of the core, those of the checker among them. A test whose order is up to a schedule
// runs under many of them, each in a process of its own, and prints the seed with which it fails.
func (b *build) runCore(t *testing.T, environment []string, prefix ...string) {
	t.Helper()
	core, tests := names(t, "core"), names(t, "core_test")
	b.compile(t, "core", core)
	b.compile(t, "core_test", tests)
	b.link(t, append(core, tests...)...)
	runProgram(t, environment, append(prefix, b.path("program"))...)
}

func runProgram(t *testing.T, environment []string, command ...string) {
	t.Helper()
	if output, err := run(t, environment, command); err != nil {
		t.Fatalf("%v\n%s", err, output[max(0, len(output)-6000):])
	}
}

// TestCore runs the program that `make beds` has built.
func TestCore(t *testing.T) {
	python := "../../.venv/bin/python"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	if output, err := exec.CommandContext(t.Context(), python, "build.py", "core_test").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, output)
	}
	var environment []string
	if quick.Only() {
		environment = fewerSeeds
	}
	runProgram(t, environment, "build/core_test")
}

// For the quick tests; and sanitizers make processes slow to start and to end, and one thread runs all tasks whatever the seed is.
var fewerSeeds = []string{"EMULATOR_ROUNDS=20", "EMULATOR_SEEDS=2"}

func TestCoreUnderAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
	t.Parallel()
	b := newBuild(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	// The tests before a fork leave freed memory behind, which each child would copy and search for leaks: 256 MB by default.
	options := "ASAN_OPTIONS=detect_stack_use_after_return=1:quarantine_size_mb=8:detect_leaks="
	leaks := "1"
	if output, err := run(t, []string{options + "1"}, []string{b.path("probe")}); err != nil {
		t.Logf("leaks are not looked for, because the leak checker does not run here: %v\n%s", err, output)
		leaks = "0"
	} else if output, err := run(t, []string{options + "1"}, []string{b.path("probe"), "leak"}); err == nil {
		t.Fatalf("a leak is not noticed:\n%s", output)
	}
	b.runCore(t, append(fewerSeeds, options+leaks, "UBSAN_OPTIONS=print_stacktrace=1"))
}

func TestCoreUnderThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
	t.Parallel()
	b := newBuild(t, "-fsanitize=thread")
	// Older libraries of ThreadSanitizer cannot place their shadow memory in a strongly randomised address space.
	var prefix []string
	if exec.Command(b.path("probe")).Run() != nil {
		prefix = []string{"setarch", "-R"}
		if output, err := exec.Command("setarch", "-R", b.path("probe")).CombinedOutput(); err != nil {
			t.Skipf("programs with ThreadSanitizer do not run here: %v\n%s", err, output)
		}
	}
	// By default each process sleeps for a second before it exits; there are a thousand.
	options := []string{"TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0", "EMULATOR_THREADED_SEEDS=5"}
	b.runCore(t, append(options, fewerSeeds...), prefix...)
}
