package emulator_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// headersOfCUDA makes fake CUDA's driver, runtime and NCCL, and prints where NVIDIA's headers are. It exits with 77 where
// there are none.
const headersOfCUDA = `
import sys
sys.path.insert(0, ".")
import build
try:
    print(build.nvidia("cu13/include/cuda.h").parent)
except build.UnavailableError as error:
    print(error)
    sys.exit(77)
build.build(["cuda", "cudart", "nccl"])
print(build.nvidia("nccl/include/nccl.h").parent)
`

// gcc returns a compiler that finds NVIDIA's headers. It makes those libraries first, in the folder that it returns.
func gcc(t *testing.T) (compile func(arguments ...string), folder string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	output, err := exec.CommandContext(ctx, "../../.venv/bin/python", "-c", headersOfCUDA).CombinedOutput()
	text := strings.TrimSpace(string(output))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 77 || errors.Is(err, os.ErrNotExist) {
		t.Skipf("no headers of CUDA: %v %s", err, text)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	folder, err = filepath.Abs("build")
	require.NoError(t, err)
	flags := []string{"-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-isystem", "cudart/include"}
	for _, headers := range strings.Fields(text) {
		flags = append(flags, "-isystem", headers)
	}
	return func(arguments ...string) {
		t.Helper()
		if output, err := exec.CommandContext(ctx, "gcc", append(flags, arguments...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}, folder
}

// buildDriver returns a program of cuda_test that is linked to fake CUDA's libraries.
func buildDriver(t *testing.T, name string) string {
	t.Helper()
	compile, folder := gcc(t)
	program := filepath.Join(t.TempDir(), name)
	compile("cuda_test/"+name+".c", filepath.Join(folder, "libcuda.so.1"), filepath.Join(folder, "libemulator.so"),
		filepath.Join(folder, "libfake_nccl.so"), "-Wl,--as-needed", "-Wl,-rpath,"+folder, "-o", program)
	return program
}

// The engine nccl declares NCCL's functions itself.
func TestTableOfNCCL(t *testing.T) {
	compile, _ := gcc(t)
	compile("-fsyntax-only", "-Wno-enum-compare", "cuda_test/nccl_abi.c")
}

func TestDriverWithoutTorch(t *testing.T) {
	underSchedules(t, buildDriver(t, "driver"), 10, nil)
}

func TestKernelsWithoutTorch(t *testing.T) {
	underSchedules(t, buildDriver(t, "kernels"), 1, nil)
}

// Which calls wait for all streams was measured (README.md).
func TestCallsThatWaitForAllStreams(t *testing.T) {
	program := buildDriver(t, "waits")
	runtime, err := filepath.Abs("build/libfake_runtime.so")
	require.NoError(t, err)
	for _, what := range []string{"calls", "at-once"} {
		underSchedules(t, program, 2, []string{"EMULATOR_STALL_S=10"}, what, runtime)
	}
	underSchedules(t, program, 2, []string{"EMULATOR_STALL_S=10", "EMULATOR_STREAM_WAITS=1"}, "streams", runtime)
}

// Each rank of the emulated NCCL is a process with an emulator of its own.
func TestNCCLWithoutTorch(t *testing.T) {
	program := buildDriver(t, "nccl")
	library, err := filepath.Abs("build/libfake_nccl.so") // the file's name is not its soname
	require.NoError(t, err)
	sizes := []string{"1", "2", "4"}
	if quick.Only() {
		sizes = sizes[1:2] // each size runs under all schedules
	}
	for _, ranks := range sizes {
		underSchedules(t, program, 2, []string{"EMULATOR_DEVICES=4", "LD_PRELOAD=" + library}, ranks)
	}
}

// underSchedules runs a program under all schedules, and under so many seeds of the random one.
func underSchedules(t *testing.T, program string, seeds int, also []string, arguments ...string) {
	t.Helper()
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("fake CUDA refuses to load beside a driver")
	}
	settings := [][]string{{"EMULATOR_SCHEDULE=lazy"}, {"EMULATOR_SCHEDULE=eager"}, {"EMULATOR_SCHEDULE=threaded"}}
	for seed := range seeds {
		settings = append(settings, []string{"EMULATOR_SCHEDULE=random", "EMULATOR_SEED=" + strconv.Itoa(seed+1)})
	}
	for _, environment := range settings {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		command := exec.CommandContext(ctx, program, arguments...)
		command.Env = slices.Concat(os.Environ(), environment, also)
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", environment, err, output)
		}
		cancel()
	}
}
