package ranks

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// deviceProgram builds tests/cabi/device.c and the emulator's library of a vendor, and returns a function that runs a part of the program
// with variables of the emulator. It returns the program's output. name is that of the devices in torch.
func deviceProgram(t *testing.T, name, part string) func(t *testing.T, variables ...string) (string, error) {
	run := emulatedProgram(t, "device.c", map[string]string{"cuda": "cuda", "npu": "acl"}[name])
	return func(t *testing.T, variables ...string) (string, error) {
		return run(t, []string{name, part}, variables...)
	}
}

// builtEmulator builds a library of the emulator, and returns its folder.
func builtEmulator(t *testing.T, emulated string) (folder string) {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(root, ".venv/bin/python"))
	require.NoError(t, err)
	if _, err := os.Stat(python); err != nil {
		t.Skip("the emulator's driver is built with the headers in .venv, which `make venv` makes")
	}
	script, err := filepath.Abs(filepath.Join(root, "tests/emulator/build.py"))
	require.NoError(t, err)
	if output, err := exec.CommandContext(t.Context(), python, script, emulated).CombinedOutput(); err != nil {
		t.Fatalf("building the emulator: %v\n%s", err, output)
	}
	return filepath.Join(filepath.Dir(script), "build")
}

// emulatedProgram builds a program of tests/cabi and a library of the emulator, and returns a function that runs the program with arguments,
// which come behind the core and a directory, and with variables of the emulator.
func emulatedProgram(t *testing.T, source, emulated string) func(t *testing.T, arguments []string, variables ...string) (string, error) {
	t.Helper()
	built := builtEmulator(t, emulated)
	lib, program := library(t), filepath.Join(t.TempDir(), "program")
	compile(t, words("CC", "gcc"), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", filepath.Join(root, "tests/cabi", source), "-o", program, "-ldl", "-lpthread")
	return func(t *testing.T, arguments []string, variables ...string) (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{lib, t.TempDir()}, arguments...)...)
		cmd.WaitDelay = time.Second
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built, "EMULATOR_HOST_CLOCKS=thread", "EMULATOR_STALL_S=20")
		cmd.Env = append(cmd.Env, variables...)
		output, err := cmd.CombinedOutput()
		return string(output[:min(len(output), 4000)]), err
	}
}

// seeds returns under how many seeds of the random schedule a test runs a program: SEEDS, which `make test-streams` sets, else
// long, with -short fewer, in the quick tests one.
func seeds(t *testing.T, long, short int) int {
	t.Helper()
	if all := os.Getenv("SEEDS"); all != "" {
		n, err := strconv.Atoi(all)
		require.NoError(t, err)
		return n
	}
	if quick.Only() {
		return min(short, 1)
	}
	if testing.Short() {
		return short
	}
	return long
}

// A C program calls collectives on a device, without torch. The emulator's checker finds nothing, whatever the schedule.
func TestCProgramOnADevice(t *testing.T) {
	for _, c := range []struct {
		name, engine string
		seeds, short int // of the random schedule
	}{
		{"cuda", "staged", 12, 6},
		{"cuda", "cuda", 4, 2}, // kernels are interpreted, which takes five times as long
		{"npu", "staged", 12, 6},
	} {
		t.Run(c.name+" "+c.engine, func(t *testing.T) {
			if c.engine == "cuda" {
				quick.Skip(t, "its kernels are interpreted; test_cuda_engine.py runs them as well")
			}
			run := deviceProgram(t, c.name, "collectives")
			t.Parallel()
			cProgramOnADevice(t, run, "SAGECOMM_ENGINE="+c.engine, seeds(t, c.seeds, c.short))
		})
	}
}

func cProgramOnADevice(t *testing.T, run func(t *testing.T, variables ...string) (string, error), engine string, seeds int) {
	schedules, mostQueues := []string{"lazy 1", "eager 1", "threaded 1"}, 3
	if quick.Only() {
		schedules, mostQueues = schedules[:1], 1 // each takes a second
	}
	for seed := range seeds {
		schedules = append(schedules, fmt.Sprint("random ", seed+1))
	}
	for _, s := range schedules {
		schedule, seed, _ := strings.Cut(s, " ")
		output, err := run(t, engine, "EMULATOR_SCHEDULE="+schedule, "EMULATOR_SEED="+seed)
		if err != nil {
			t.Errorf("%s: %v\n%s", s, err, output)
		}
	}
	// Streams that share a queue of the hardware block each other where one waits for the host.
	for queues := range mostQueues {
		output, err := run(t, engine, "EMULATOR_SCHEDULE=random", fmt.Sprint("EMULATOR_QUEUES=", queues+1))
		if err != nil {
			t.Errorf("with %d hardware queues: %v\n%s", queues+1, err, output)
		}
	}
}

// A C program asks where memory is and what a factor in the memory of a device will be, without a group.
func TestPlacesAndFactorsOnADevice(t *testing.T) {
	schedules := []string{"lazy", "random", "eager", "threaded"}
	if quick.Only() {
		schedules = schedules[:2] // no operation runs meanwhile
	}
	for _, name := range []string{"cuda", "npu"} {
		t.Run(name, func(t *testing.T) {
			run := deviceProgram(t, name, "places")
			for _, schedule := range schedules {
				output, err := run(t, "EMULATOR_SCHEDULE="+schedule, "EMULATOR_SEED=1")
				require.NoErrorf(t, err, "%s: %s", schedule, output)
			}
		})
	}
}

// A driver may want a current context for the question where memory is. Then any context will do that the process has.
func TestPlacesOnAnotherDevice(t *testing.T) {
	run := deviceProgram(t, "cuda", "elsewhere")
	for _, fault := range []string{"", "cuPointerGetAttributes@1=#201"} {
		output, err := run(t, "EMULATOR_DEVICES=2", "EMULATOR_FAULTS="+fault)
		require.NoErrorf(t, err, "%s: %s", fault, output)
	}
}

// A driver that lacks a function is refused, and the message names the function.
func TestDriverThatIsTooOld(t *testing.T) {
	const lacking = "cuEventRecord"
	run, folder := deviceProgram(t, "cuda", "collectives"), t.TempDir()
	withoutFunction(t, builtEmulator(t, "cuda"), "cuda", lacking, filepath.Join(folder, "libcuda.so.1"))
	output, err := run(t, "LD_LIBRARY_PATH="+folder)
	if err == nil || !strings.Contains(output, "the CUDA driver has no "+lacking+": it is older than CUDA 12") {
		t.Errorf("%v\n%s", err, output)
	}
}

// Where the device has no event left, the operation fails with the driver's text, and its peer fails too. No process hangs.
func TestEventsRunOut(t *testing.T) {
	run := deviceProgram(t, "cuda", "collectives")
	most := 40
	if quick.Only() {
		most = 14 // each takes a second
	}
	for first := 1; first <= most; first += 13 {
		output, err := run(t, "EMULATOR_SCHEDULE=random", fmt.Sprintf("EMULATOR_FAULTS=cuEventCreate@%d+=out_of_memory", first))
		if err == nil || !strings.Contains(output, "CUDA_ERROR_OUT_OF_MEMORY") {
			t.Errorf("no event from the event %d on: %v\n%s", first, err, output)
		}
	}
}

// Each call that orders streams is needed: without one of them the checker reports a conflict, a result is wrong or the program
// hangs. The emulator leaves out the named call of each process and reports success.
func TestEachOrderOfADeviceIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("the quick tests run the program as it is")
	}
	run := deviceProgram(t, "cuda", "collectives")
	t.Parallel()
	// Three operations of the program follow each other on the same memory. The stream of the input of one waits for the output of
	// the one before if that is not complete yet, so the caller's wait for the third one is one of a few calls.
	for _, c := range []struct{ engine, symbol, calls, what string }{
		{"staged", "cuEventRecord", "1", "the caller's stream is not recorded, so the copy into pinned memory does not wait for the input"},
		{"staged", "cuStreamWaitEvent", "1", "the copy into pinned memory does not wait for the caller's stream"},
		{"staged", "cuStreamWaitEvent", "6 7 8", "the caller's stream does not wait for the result"},
		{"staged", "cuStreamWaitValue32", "3", "the copy back does not wait for the host"},
		{"staged", "cuStreamWaitValue32", "9", "the same for a later operation"},
		{"staged", "cuMemcpyDtoHAsync", "1", "the input is not copied"},
		{"staged", "cuMemcpyHtoDAsync", "2", "the result is not copied back"},
		{"cuda", "cuEventRecord", "1", "the caller's stream is not recorded, so the first copy does not wait for the input"},
		{"cuda", "cuStreamWaitEvent", "1", "the first copy does not wait for the caller's stream"},
		{"cuda", "cuStreamWaitValue32", "2", "the stream does not wait for the word of the other rank"},
		{"cuda", "cuMemcpyDtoDAsync", "1", "the input is not copied"},
		{"cuda", "cuLaunchKernel", "1", "nothing is reduced"},
	} {
		var output, fault string
		var err error
		for _, call := range strings.Fields(c.calls) {
			fault = c.symbol + "@" + call
			for seed := 1; seed <= 20 && err == nil; seed++ {
				output, err = run(t, "SAGECOMM_ENGINE="+c.engine, "EMULATOR_SCHEDULE=random", fmt.Sprint("EMULATOR_SEED=", seed), "EMULATOR_FAULTS="+fault+"=#0")
			}
		}
		switch {
		case err == nil:
			t.Errorf("engine %s: %s was left out, and nobody noticed: %s", c.engine, fault, c.what)
		case strings.Contains(output, "EMULATOR_FAULTS"):
			t.Errorf("engine %s: %s: %s", c.engine, fault, output)
		default:
			t.Logf("engine %s: %s left out: %.300s", c.engine, fault, output)
		}
	}
}
