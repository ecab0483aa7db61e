// Package sanitize runs the C sources of internal/runner, without Go, under AddressSanitizer and ThreadSanitizer: ranks
// are threads over one mapping (tests/runner/*.c), kernels are the portable ones. It also takes out protections, one at
// a time, and expects that the same tests fail.
//
// What the sanitizers cannot see: races through two mappings of one memory, streaming stores, the order of a store and a
// later load. For the last there is the model in tests/modelcheck.
package sanitize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// hooks has the calls into Go. It is not compiled: tests/runner/ranks.c takes the place of Go.
const hooks = "internal/runner/hooks.c"

// unused are kernels that only have to link, because portable ones are forced. They are compiled without a sanitizer.
var unused = []string{"kernels/avx2.c", "kernels/avx512.c"}

// kernels are compiled without UndefinedBehaviorSanitizer, with which they take the compiler as long as half of all the
// rest: internal/kernels/sanitize_test.go runs all of them under both.
const kernels = "kernels/portable.c"

const runBound = 8 * time.Minute // of one run of threads_test; a run that hangs says in its last line where

// build is a copy of the sources with the objects and programs made of it.
type build struct {
	dir         string
	flags       []string
	environment []string // of threads_test, beside that of the sanitizers
}

func compiler() []string {
	if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
		return cc
	}
	return []string{"gcc"}
}

func (b *build) cc(args ...string) (string, error) {
	cc := compiler()
	cmd := exec.Command(cc[0], append(cc[1:], args...)...)
	cmd.Dir = b.dir
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// newBuild copies the sources, at their places relative to each other.
func newBuild(t *testing.T, sanitizer string, flags ...string) *build {
	t.Helper()
	b := &build{dir: t.TempDir(), flags: append([]string{"-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror",
		"-Wno-unused-parameter", "-fno-strict-aliasing", "-fno-builtin", "-pthread", "-DSCR_COUNT_STEPS", "-fsanitize=" + sanitizer}, flags...)}
	for _, pattern := range []string{"internal/runner/*.[ch]", "internal/kernels/*.[ch]", "tests/runner/*.[ch]", "export/sagecomm.h"} {
		list, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(list), err)
		}
		for _, from := range list {
			text, err := os.ReadFile(from)
			require.NoError(t, err)
			b.write(t, strings.TrimPrefix(filepath.ToSlash(from), "../../../"), text)
		}
	}
	b.write(t, "tests/runner/plan_tables.c", writePlans(t))
	return b
}

func (b *build) write(t *testing.T, name string, text []byte) {
	t.Helper()
	path := filepath.Join(b.dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// usable skips the test where the compiler has no such sanitizer, and finds out how its programs have to be started:
// older libraries of ThreadSanitizer cannot place their shadow memory in a strongly randomised address space.
func (b *build) usable(t *testing.T) (prefix []string) {
	t.Helper()
	b.write(t, "probe.c", []byte("int main(void) { return 0; }\n"))
	if output, err := b.cc(append(b.flags, "probe.c", "-o", "probe")...); err != nil {
		t.Skipf("%v cannot build with %v (Debian: the libraries come with gcc): %v\n%s", compiler(), b.flags, err, output)
	}
	probe := filepath.Join(b.dir, "probe")
	output, err := exec.Command(probe).CombinedOutput()
	if err == nil {
		return nil
	}
	prefix = []string{"setarch", "-R"}
	if exec.Command("setarch", "-R", probe).Run() != nil {
		t.Skipf("programs with %v do not run here: %v\n%s", b.flags, err, output)
	}
	return prefix
}

// sources returns all sources that are compiled.
func (b *build) sources(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, folder := range []string{"internal/runner", "internal/kernels", "tests/runner"} {
		list, err := filepath.Glob(filepath.Join(b.dir, folder, "*.c"))
		require.NoError(t, err)
		for _, path := range list {
			if source := folder + "/" + filepath.Base(path); source != hooks {
				all = append(all, source)
			}
		}
	}
	return all
}

// flagsOf returns the flags that a source is compiled with.
func (b *build) flagsOf(source string) []string {
	for _, p := range unused {
		if strings.HasSuffix(source, p) {
			return []string{"-std=gnu11", "-O0"}
		}
	}
	flags := slices.Clone(b.flags)
	if strings.HasSuffix(source, kernels) {
		for i, flag := range flags {
			flags[i] = strings.Replace(flag, "address,undefined", "address", 1)
		}
	}
	return flags
}

// compile makes objects of the named sources, two at a time.
func (b *build) compile(t *testing.T, some []string, object func(source string) string, more ...string) {
	t.Helper()
	var group sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, source := range some {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if output, err := b.cc(append(append(b.flagsOf(source), more...), "-c", source, "-o", object(source))...); err != nil {
				t.Errorf("%s: %v\n%s", source, err, output)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// link makes threads_test of all objects, of a mutant's where it has its own.
func (b *build) link(t *testing.T, mutated ...string) {
	t.Helper()
	words := slices.Clone(b.flags)
	for _, source := range b.sources(t) {
		if slices.Contains(mutated, source) {
			words = append(words, mutant(source))
		} else {
			words = append(words, object(source))
		}
	}
	if output, err := b.cc(append(words, "-o", "threads_test")...); err != nil {
		t.Fatalf("linking: %v\n%s", err, output)
	}
}

func object(source string) string {
	return strings.TrimSuffix(strings.ReplaceAll(source, "/", "_"), ".c") + ".o"
}

func mutant(source string) string { return "mutant_" + object(source) }

var errHangs = fmt.Errorf("it hangs: no end after %v", runBound)

// run returns the output of threads_test, and an error if it or a sanitizer found a fault.
func (b *build) run(t *testing.T, prefix []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runBound)
	defer cancel()
	line := append(append(append([]string{}, prefix...), filepath.Join(b.dir, "threads_test")), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1", "UBSAN_OPTIONS=print_stacktrace=1",
		"ASAN_OPTIONS=detect_stack_use_after_return=1")
	cmd.Env = append(cmd.Env, b.environment...)
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return string(output), errHangs
	}
	return string(output), err
}

func seed(t *testing.T) string {
	s := os.Getenv("RANKS_SEED")
	if s == "" {
		s = strconv.FormatUint(rand.Uint64N(1<<31), 10)
	}
	t.Logf("seed %s; RANKS_SEED=%s runs it again", s, s)
	return s
}

// A mutant is the runner with one protection taken out: the source has the broken code under `#ifdef SCR_MUTANT_...`,
// beside what it breaks. The scenario that is named must notice.
type mutation struct{ name, macro, file, scenario string }

// mutations are noticed by ThreadSanitizer, or by the scenario itself.
var mutations = []mutation{
	{"a slot is written again before all have read it", "SLOT_REUSED", "program.c", "random"},
	{"a failure record changes after it was named", "FAILURE_OVERWRITTEN", "group.c", "declare_from_many"},
	{"a record is copied while its owner writes it", "RECORD_COPIED_AT_ONCE", "calls.c", "state"},
	{"a cause that was replaced is freed at once", "CAUSE_FREED", "group.c", "cause_is_replaced"},
	{"the status of a failed operation is of another cause than its text", "CAUSE_READ_TWICE", "run.c", "cause_is_replaced"},
	{"a composite has the status of one failed part and the text of another", "CAUSE_OF_ANOTHER_PART", "composite.c", "cause_is_replaced"},
	{"a done function is seen before its context", "DONE_BEFORE_CONTEXT", "run.c", "wait_against_on_done"},
	{"the engine sleeps on when a collective is left to a waiter", "LEFT_UNWATCHED", "queue.c", "left_to_a_waiter"},
	{"a collective that nobody waits for is left to a waiter again", "LEFT_FOR_EVER", "queue.c", "left_to_a_waiter"},
	{"an entry of the recorder counts while it is written over", "ENTRY_OVERWRITTEN", "recorder.c", "recorder"},
	{"one thread for done functions must do", "ONE_CALLBACK_THREAD", "engine.c", "nested_done"},
	{"a look at the fifos before a sleep gives way to another thread's", "LOOK_GIVES_WAY", "p2p_issue.c", "sleep_beside_another"},
	{"the engine sleeps on when a p2p is left to it", "ENGINE_SLEEPS_ON", "engine.c", "timeout_of_what_nobody_waits_for"},
	{"a pass over the p2p pairs lasts while there is work", "ENDLESS_PASS", "p2p.c", "bounded_passes"},
	{"a place of a channel is written again before its message was taken", "PLACE_REUSED", "sendrecv.c", "channels"},
	{"a message is there before its bytes are", "MESSAGE_BEFORE_BYTES", "sendrecv.c", "channels"},
	{"a message is taken before its bytes are", "TAKEN_BEFORE_BYTES", "sendrecv.c", "channels"},
	{"the calls that messages belong to are not compared", "CALLS_NOT_COMPARED", "sendrecv.c", "mismatch"},
	{"an operation that fails on the fast path leaves what is behind it to begin", "FAILS_ALONE", "issue.c", "behind_a_failure"},
	{"who waits for room says that it waits for a message", "WAITS_FOR_MESSAGE", "sendrecv.c", "awaits"},
	{"a rank whose message is there counts as one that waits", "THERE_COUNTS_AS_WAITING", "calls.c", "awaits"},
	{"a run does not wait until the device has filled its input", "INPUT_NOT_AWAITED", "gate.c", "gates"},
	{"a run does not wait until the device has emptied its output", "OUTPUT_NOT_AWAITED", "gate.c", "gates"},
	{"the gate of a run that fails stays shut", "GATE_STAYS_SHUT", "gate.c", "gate_opens"},
	{"a gate belongs to the next operation before its last word is written", "OUTPUT_OPENED_FIRST", "gate.c", "gates"},
	{"the device may take an average before it is divided", "AVERAGE_LEFT_FIRST", "sendrecv.c", "averages_at_gates"},
	{"a gate is opened after its run is complete", "GATE_OPENED_AGAIN", "run.c", "gates"},
	{"external runs are not looked at while a run waits at its gate", "EXTERNALS_UNSEEN", "engine.c", "external_before_a_gate"},
	{"a kernel that an abort has cut is a success", "CUT_IS_DONE", "gate.c", "external_cut"},
	{"streams are not looked at when the group goes down", "DOWN_LOOKS_AT_NO_STREAM", "group.c", "external_unseen"},
	{"an operation whose stream goes on behind a peer's failure is a success", "FAILED_IS_DONE", "gate.c", "external_failed"},
	{"an operation that a peer has voided is a success", "VOID_IS_DONE", "gate.c", "external_void"},
	{"a send or recv does not wait until its stream has reached it", "P2P_NOT_BEHIND", "p2p_gate.c", "p2p_gates"},
	{"a recv that has its payload needs its sender", "ARRIVED_NEEDS_PEER", "p2p_scan.c", "sender_leaves_a_gate"},
	{"who waits for a p2p does not look at gates", "GATES_NOT_POLLED", "p2p_issue.c", "looks_at_gates"},
	{"the engine does not look at gates of p2ps", "ENGINE_LEAVES_GATES", "engine.c", "gates_left_to_the_engine"},
	{"the done function of an operation in a bucket may be called before the operation is complete", "LEFT_TOO_EARLY", "bucket.c", "fused"},
	{"a flag does not publish what was written before it", "FLAG_RELAXED", "wait.h", "random"},
}

// healthy compiles all for a sanitizer and runs all scenarios.
func healthy(t *testing.T, sanitizer string, flags ...string) (*build, []string) {
	b := newBuild(t, sanitizer, flags...)
	prefix := b.usable(t)
	b.compile(t, b.sources(t), object)
	b.link(t)
	rounds := "120"
	if testing.Short() {
		rounds = "20"
	}
	if output, err := b.run(t, prefix, seed(t), rounds); err != nil {
		t.Fatalf("%v\n%s", err, tail(output))
	}
	return b, prefix
}

func tail(output string) string { return output[max(0, len(output)-6000):] }

// unchecked are mutants without a check of what peers write. AddressSanitizer notices them.
var unchecked = []mutation{
	{"an offset of slots is believed", "SLOTS_BELIEVED", "slots.h", "random_garbage"},
	{"an offset of a fifo is believed", "FIFO_BELIEVED", "fifo.c", "random_garbage"},
	{"an offset of a channel is believed", "CHANNEL_BELIEVED", "sendrecv.c", "wrong_channels"},
	{"a header of a message is believed", "HEADER_BELIEVED", "sendrecv.c", "bad_messages"},
	{"another number than the next message's is good enough", "NUMBER_BELIEVED", "sendrecv.c", "bad_messages"},
	{"more may be taken than was sent", "TAKEN_BELIEVED", "sendrecv.c", "wrong_taken"},
	{"a payload may be longer than it was announced", "LENGTH_BELIEVED", "p2p.c", "bad_frames"},
}

func TestUnderAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("garbage from peers is met by Go's tests as well; what meets nothing else are the races below")
	}
	t.Parallel() // with the other one
	b, prefix := healthy(t, "address,undefined", "-fno-sanitize-recover=all")
	b.expectAllNoticed(t, prefix, unchecked)
}

func TestUnderThreadSanitizer(t *testing.T) {
	quick.Skip(t, "compiling for a sanitizer takes a minute; Go's tests run the runner without one")
	t.Parallel()
	b, prefix := healthy(t, "thread")
	b.expectAllNoticed(t, prefix, mutations)
}

func (b *build) expectAllNoticed(t *testing.T, prefix []string, list []mutation) {
	if testing.Short() {
		return
	}
	b.environment = []string{"RANKS_TIMEOUT=3"} // operations of a mutant that hangs fail soon
	for _, m := range list {
		t.Run("notices when "+m.name, func(t *testing.T) {
			affected := []string{"internal/runner/" + m.file}
			if strings.HasSuffix(m.file, ".h") { // what is inline there, in the runner itself
				affected = slices.DeleteFunc(b.sources(t), func(s string) bool {
					return strings.Contains(s, "/kernels") || !strings.HasPrefix(s, "internal/runner/")
				})
			}
			b.compile(t, affected, mutant, "-DSCR_MUTANT_"+m.macro)
			b.link(t, affected...)
			b.expectNotice(t, prefix, m.scenario)
		})
	}
}

// Every mutant in the sources is in one of the lists, and stands in the file that it is said to be in.
func TestMutantsAreListed(t *testing.T) {
	listed := map[string]string{}
	for _, m := range append(slices.Clone(mutations), unchecked...) {
		listed[m.macro] = m.file
	}
	found := map[string]string{}
	files, err := filepath.Glob("../../../internal/*/*.[ch]")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`SCR_MUTANT_(\w+)`).FindAllSubmatch(text, -1) {
			found[string(match[1])] = filepath.Base(file)
		}
	}
	if !maps.Equal(found, listed) {
		t.Errorf("in the sources: %v\nin the lists: %v", found, listed)
	}
}

// A race does not show in every run.
const attempts = 6

func (b *build) expectNotice(t *testing.T, prefix []string, scenario string) {
	t.Helper()
	for i := range attempts {
		output, err := b.run(t, prefix, strconv.Itoa(i+1), "120", scenario)
		var exit *exec.ExitError
		if errors.As(err, &exit) || errors.Is(err, errHangs) {
			t.Logf("noticed with seed %d: %s", i+1, verdict(output))
			return
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, tail(output))
		}
	}
	t.Errorf("%d runs of %q did not notice", attempts, scenario)
}

// verdict returns the line of the output that names the fault.
func verdict(output string) string {
	for line := range strings.Lines(output) {
		if strings.Contains(line, "WARNING: ThreadSanitizer") || strings.Contains(line, "ERROR: AddressSanitizer") || strings.Contains(line, "runtime error: ") || strings.Contains(line, "does not hold") {
			return strings.TrimSpace(line)
		}
	}
	return "it ended with an error"
}
