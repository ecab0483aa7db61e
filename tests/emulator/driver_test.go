package emulator_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// headersOfCUDA makes fake CUDA's driver and prints where NVIDIA's headers are. It exits with 77 where there are none.
const headersOfCUDA = `
import sys
sys.path.insert(0, ".")
import build
try:
    print(build.nvidia("cu13/include/cuda.h").parent)
except build.UnavailableError as error:
    print(error)
    sys.exit(77)
build.build(["cuda"])
`

// buildDriver returns a program of cuda_test that is linked to fake CUDA's libcuda.so.1.
func buildDriver(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, "../../.venv/bin/python", "-c", headersOfCUDA).CombinedOutput()
	text := strings.TrimSpace(string(output))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 77 || errors.Is(err, os.ErrNotExist) {
		t.Skipf("no headers of CUDA: %v %s", err, text)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	folder, err := filepath.Abs("build")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), name)
	command := exec.CommandContext(ctx, "gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-isystem", text,
		"cuda_test/"+name+".c", filepath.Join(folder, "libcuda.so.1"), filepath.Join(folder, "libemulator.so"),
		"-Wl,-rpath,"+folder, "-o", program)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return program
}

func TestDriverWithoutTorch(t *testing.T) {
	program := buildDriver(t, "driver")
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("fake CUDA refuses to load beside a driver")
	}
	settings := [][]string{{"EMULATOR_SCHEDULE=lazy"}, {"EMULATOR_SCHEDULE=eager"}, {"EMULATOR_SCHEDULE=threaded"}}
	for seed := range 10 {
		settings = append(settings, []string{"EMULATOR_SCHEDULE=random", "EMULATOR_SEED=" + strconv.Itoa(seed+1)})
	}
	for _, environment := range settings {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		command := exec.CommandContext(ctx, program)
		command.Env = append(os.Environ(), environment...)
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", environment, err, output)
		}
		cancel()
	}
}
