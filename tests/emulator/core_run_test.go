package emulator_test

import (
	"os/exec"
	"testing"
)

// runCore builds and runs all tests of the core, those of the checker among them. A test whose order is up to a schedule
// runs under many of them, each in a process of its own, and prints the seed with which it fails.
func (b *build) runCore(t *testing.T, environment []string, prefix ...string) {
	t.Helper()
	core, tests := names(t, "core"), names(t, "core_test")
	b.compile(t, "core", core)
	b.compile(t, "core_test", tests)
	b.link(t, append(core, tests...)...)
	if output, err := b.run(t, environment, append(prefix, b.path("program"))); err != nil {
		t.Fatalf("%v\n%s", err, output[max(0, len(output)-6000):])
	}
}

func TestCore(t *testing.T) {
	newBuild(t).runCore(t, nil)
}

// Sanitizers make a process slow to start, so tests with hundreds of seeds have fewer of them.
var fewerSeeds = []string{"EMULATOR_ROUNDS=20", "EMULATOR_SEEDS=20"}

func TestCoreUnderAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
	b := newBuild(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	options := "ASAN_OPTIONS=detect_stack_use_after_return=1:detect_leaks="
	leaks := "1"
	if output, err := b.run(t, []string{options + "1"}, []string{b.path("probe")}); err != nil {
		t.Logf("leaks are not looked for, because the leak checker does not run here: %v\n%s", err, output)
		leaks = "0"
	} else if output, err := b.run(t, []string{options + "1"}, []string{b.path("probe"), "leak"}); err == nil {
		t.Fatalf("a leak is not noticed:\n%s", output)
	}
	b.runCore(t, append(fewerSeeds, options+leaks, "UBSAN_OPTIONS=print_stacktrace=1"))
}

func TestCoreUnderThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
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
