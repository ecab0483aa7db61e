package emulator_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The happens-before checker needs nothing else of the core.
var (
	checkerSources = []string{"checker", "history", "reports", "waits"}
	checkerTests   = []string{"checker_main", "checker_test", "checker_flags_test", "checker_bounds_test",
		"checker_random_test"}
)

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
	t.Parallel()
	b := newBuild(t, "-w") // a mutant may leave a variable unused
	objects := append(checkerSources, checkerTests...)
	b.compile(t, "core", checkerSources)
	b.compile(t, "core_test", checkerTests)
	b.link(t, objects...)
	if output, err := run(t, []string{"EMULATOR_ROUNDS=1"}, []string{b.path("program")}); err != nil {
		t.Fatalf("without a mutant: %v\n%s", err, output)
	}
	for _, m := range checkerMutants {
		t.Run(m.name, func(t *testing.T) {
			file := "core/" + m.source + ".cpp"
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			if !strings.Contains(string(text), m.from) {
				t.Fatalf("%s does not contain %q", file, m.from)
			}
			b.write(t, file, strings.ReplaceAll(string(text), m.from, m.to))
			defer func() {
				b.write(t, file, string(text))
				b.compile(t, "core", []string{m.source})
			}()
			b.compile(t, "core", []string{m.source})
			b.link(t, objects...)
			if output, err := run(t, []string{"EMULATOR_ROUNDS=2000"}, []string{b.path("program"), m.test}); err == nil {
				t.Errorf("2000 seeds did not notice:\n%s", output)
			} else {
				t.Logf("%v: %.300s", err, output)
			}
		})
	}
}
