// Package emulator_test builds and runs the tests of the emulator, which are C++ programs.
package emulator_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The happens-before checker needs nothing else of the core.
var (
	checkerSources = []string{"checker", "history", "reports", "waits"}
	checkerTests   = []string{"checker_main", "checker_test", "checker_flags_test", "checker_bounds_test",
		"checker_random_test"}
)

const checkerBound = 5 * time.Minute // of one run; each names the test that it is in

// checkerBuild is a copy of the checker and its tests, with the objects made of it.
type checkerBuild struct {
	dir   string
	flags []string
}

func newCheckerBuild(t *testing.T, flags ...string) *checkerBuild {
	t.Helper()
	common := []string{"-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"}
	b := &checkerBuild{t.TempDir(), append(common, flags...)}
	for _, pattern := range []string{"core/*.[ch]pp", "core/*.h", "core_test/*.[ch]pp"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(list), err)
		}
		for _, name := range list {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b.write(t, name, string(text))
		}
	}
	b.write(t, "probe.cpp", "int main() { return 0; }\n")
	if output, err := b.compiler(append(b.flags, "probe.cpp", "-o", "probe")...); err != nil {
		t.Skipf("the compiler cannot build with %v: %v\n%s", b.flags, err, output)
	}
	return b
}

func (b *checkerBuild) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b *checkerBuild) compiler(args ...string) (string, error) {
	cxx := strings.Fields(os.Getenv("CXX"))
	if len(cxx) == 0 {
		cxx = []string{"g++"}
	}
	cmd := exec.Command(cxx[0], append(cxx[1:], args...)...)
	cmd.Dir = b.dir
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// compile makes objects of the named sources, two at a time.
func (b *checkerBuild) compile(t *testing.T, folder string, names []string) {
	t.Helper()
	var group sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, name := range names {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			words := append(slices.Clone(b.flags), "-c", folder+"/"+name+".cpp", "-o", name+".o")
			if output, err := b.compiler(words...); err != nil {
				t.Errorf("%s: %v\n%s", name, err, output)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func (b *checkerBuild) link(t *testing.T) {
	t.Helper()
	words := slices.Clone(b.flags)
	for _, name := range append(slices.Clone(checkerSources), checkerTests...) {
		words = append(words, name+".o")
	}
	if output, err := b.compiler(append(words, "-o", "checker_test")...); err != nil {
		t.Fatalf("linking: %v\n%s", err, output)
	}
}

// run runs all tests or the named ones, with so many seeds of each kind of random history.
func (b *checkerBuild) run(t *testing.T, prefix []string, seeds int, tests ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), checkerBound)
	defer cancel()
	line := append(append(slices.Clone(prefix), filepath.Join(b.dir, "checker_test")), tests...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "EMULATOR_ROUNDS="+strconv.Itoa(seeds), "TSAN_OPTIONS=halt_on_error=1")
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func (b *checkerBuild) runAll(t *testing.T, prefix []string, seeds int) {
	t.Helper()
	b.compile(t, "core", checkerSources)
	b.compile(t, "core_test", checkerTests)
	b.link(t)
	if output, err := b.run(t, prefix, seeds); err != nil {
		t.Fatalf("%v\n%s", err, output[max(0, len(output)-6000):])
	}
}

func TestChecker(t *testing.T) {
	newCheckerBuild(t).runAll(t, nil, 300)
}

func TestCheckerUnderAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
	newCheckerBuild(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all").runAll(t, nil, 100)
}

func TestCheckerUnderThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests again, under a sanitizer")
	}
	b := newCheckerBuild(t, "-fsanitize=thread")
	// Older libraries of ThreadSanitizer cannot place their shadow memory in a strongly randomised address space.
	prefix := []string{"setarch", "-R"}
	probe := filepath.Join(b.dir, "probe")
	if exec.Command(probe).Run() == nil {
		prefix = nil
	} else if output, err := exec.Command("setarch", "-R", probe).CombinedOutput(); err != nil {
		t.Skipf("programs with ThreadSanitizer do not run here: %v\n%s", err, output)
	}
	b.runAll(t, prefix, 20)
}

// checkerMutants are faults of the checker, each made by a change of its source. The random histories or the named test
// must notice.
var checkerMutants = []struct{ name, source, from, to, test string }{
	{"an access behind a wait replaces those before it", "history", " && at.waits_within(earlier->clock)", "",
		"random_histories_with_flags"},
	{"a write replaces what it conflicts with", "history", "return known(*earlier, at) &&", "return", "random_histories"},
	{"a read replaces writes", "history", "} else {\n      replace(cell.reads, at);",
		"} else {\n      replace(cell.writes, at);", "random_histories"},
	{"only one thread counts for what all know", "checker", "least.meet(state.clock)", "least.join(state.clock)",
		"random_histories"},
	{"a new thread forgets the waits that all threads know", "checker", "  return least;",
		"  least.take_waits();\n  return least;", "random_histories_with_flags"},
	{"numbers of agents are used again at once", "checker", "if (!used[agent])", "if (true)", "random_histories"},
	{"a key is dropped while a wait needs it", "checker", "!needed && ", "", "random_histories_with_flags"},
	{"the newest value is taken for the earliest", "waits", "least->meet(clock)", "least->join(clock)",
		"random_histories_with_flags"},
	{"an overwriting counts before it is known", "waits", "if (after && seen)", "if (after)", "random_histories_with_flags"},
	{"an overwritten value counts", "waits", "if (after && seen) return true;", "(void)after, (void)seen;",
		"random_histories_with_flags"},
	{"a write behind a wait satisfies it", "waits", "clock.contains(wait) || !wait->condition(value)",
		"!wait->condition(value)", "random_histories_with_flags"},
	{"late accesses conflict with what comes after them", "checker",
		"if (earlier->clock.get(later->agent) >= later->step) return;", "", "random_histories_with_late_accesses"},
}

func TestCheckerMutantsAreNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("mutants are about the tests, not about the checker")
	}
	b := newCheckerBuild(t, "-w") // a mutant may leave a variable unused
	b.runAll(t, nil, 1)
	for _, m := range checkerMutants {
		t.Run(m.name, func(t *testing.T) {
			file := "core/" + m.source + ".cpp"
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), m.from) {
				t.Fatalf("%s does not contain %q", file, m.from)
			}
			b.write(t, file, strings.ReplaceAll(string(text), m.from, m.to))
			defer func() {
				b.write(t, file, string(text))
				b.compile(t, "core", []string{m.source})
			}()
			b.compile(t, "core", []string{m.source})
			b.link(t)
			if output, err := b.run(t, nil, 2000, m.test); err == nil {
				t.Errorf("2000 seeds did not notice:\n%s", output)
			} else {
				t.Logf("%v: %.300s", err, output)
			}
		})
	}
}
