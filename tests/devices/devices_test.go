// Package devices tests the runtimes of internal/device against libraries that have the vendors' ABI and run the emulator
// (tests/emulator/acl, tests/emulator/cnrt). A runtime is opened once in a process, so each test runs in processes of its own:
// this test binary starts itself.
//
// Libraries of collectives make these mistakes with such runtimes, and these tests notice them here:
//   - copies in the default stream, or not behind what the caller's stream holds: TestAnOperationInStreams
//   - an event that is recorded in another stream, or that no stream waits for: TestArgumentsOfEachCall, TestEachOrderIsNeeded
//   - the handle of a stream that is kept from one operation to the next: TestInStreamsOfAFramework, TestAHandleThatWasKept
//   - a number of elements for a number of bytes, a constant of another enumeration: TestArgumentsOfEachCall
//   - an error without a name that counts as success, the result of a call that nobody looks at: TestEachFailingCallIsAnError
//   - a query of a wait instead of a record, a callback without a thread for it: TestTrapsOfAscend; the runtimes call neither
//   - a device that is current on the wrong thread: TestAThreadWithoutADevice
//
// Start reading at vendor_test.go, which says how the vendors differ.
package devices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/devices/raw"
	"sagecomm/tests/quick"
)

const (
	insideVariable = "DEVICES_TEST"  // the test that the process runs
	bound          = 4 * time.Minute // of one process, on a machine that has much else to do
	ran            = "the part of the test has ended"
)

// built builds the libraries once and returns their folder.
var built = sync.OnceValues(func() (string, error) {
	script, err := filepath.Abs("../emulator/build.py")
	if err != nil {
		return "", err
	}
	python := filepath.Join(filepath.Dir(script), "../../.venv/bin/python")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if output, err := exec.CommandContext(ctx, python, script, "acl", "cnrt", "hccl", "cncl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, output)
	}
	return filepath.Join(filepath.Dir(script), "build"), nil
})

func folder(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("../../.venv/bin/python"); err != nil {
		t.Skip("the emulator is built by the Python of .venv, which `make venv` makes")
	}
	at, err := built()
	require.NoError(t, err)
	return at
}

// onlyIn returns a folder with some of the libraries.
func onlyIn(t *testing.T, libraries ...string) string {
	t.Helper()
	at := t.TempDir()
	for _, library := range libraries {
		err := os.Symlink(filepath.Join(folder(t), library), filepath.Join(at, library))
		require.NoError(t, err)
	}
	return at
}

// isolated runs a part of a test in a process with further variables, where the vendors' libraries are those of a folder.
func isolated(t *testing.T, libraries string, variables []string, body func(t *testing.T)) {
	t.Helper()
	if inside := os.Getenv(insideVariable); inside == t.Name() {
		body(t)
		fmt.Println(ran)
		return
	} else if inside != "" {
		return
	}
	if output, err := start(t, libraries, variables); err != nil || !strings.Contains(output, ran) {
		t.Errorf("%v\n%s", err, output)
	}
}

// start runs a test of this package in a process and returns what it wrote.
func start(t *testing.T, libraries string, variables []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	output, err := command(ctx, t, libraries, variables).CombinedOutput()
	return string(output[:min(len(output), 4000)]), err
}

// command is the process of a test of this package.
func command(ctx context.Context, t *testing.T, libraries string, variables []string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	var pattern []string
	for _, name := range strings.Split(t.Name(), "/") {
		pattern = append(pattern, "^"+name+"$")
	}
	cmd := exec.CommandContext(ctx, self, fmt.Sprint("-test.short=", testing.Short()), "-test.run="+strings.Join(pattern, "/"))
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), insideVariable+"="+t.Name(), "LD_LIBRARY_PATH="+libraries, "EMULATOR_KICK_MS=0", "EMULATOR_STALL_S=20")
	if libraries != "" { // so that C code finds the emulator's annotations
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(folder(t), "libemulator.so"))
	}
	cmd.Env = append(cmd.Env, variables...)
	return cmd
}

// schedules returns variables for runs of the emulator. `make test-streams` sets SEEDS, the number of random ones.
func schedules() (list [][]string) {
	for _, s := range []string{"lazy", "eager", "threaded"} {
		list = append(list, []string{"EMULATOR_SCHEDULE=" + s})
	}
	seeds := 8
	if testing.Short() {
		seeds = 2
	}
	if quick.Only() {
		seeds = 1
	}
	if all := os.Getenv("SEEDS"); all != "" {
		n, err := strconv.Atoi(all)
		if err != nil {
			panic(err)
		}
		seeds = n
	}
	for seed := range seeds {
		list = append(list, []string{"EMULATOR_SCHEDULE=random", fmt.Sprint("EMULATOR_SEED=", seed+1)})
	}
	return list
}

// reports returns what the emulator's checker has found.
func reports(library raw.Library) string {
	if library.Call("emulator_reports") == 0 {
		return ""
	}
	const room = 4000
	text := raw.Memory(room)
	n := library.Call("emulator_report_text", text, room)
	return string(raw.Bytes(text, min(n, room-1)))
}
