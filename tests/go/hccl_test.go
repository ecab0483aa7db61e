package ranks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hccl/symbols.txt lists what wheels look up. tests/cabi/hccl.c calls all of it, on host memory and on emulated devices.
func TestHCCLFacade(t *testing.T) {
	folder := builtFacade(t, "hccl", "libhccl.so")
	library, program := filepath.Join(folder, "libhccl.so"), filepath.Join(t.TempDir(), "hccl")
	source := filepath.Join(root, "tests/cabi/hccl.c")
	compile(t, words("CC", "gcc"), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"+filepath.Join(root, "hccl"), source, library,
		"-Wl,-rpath,"+folder, "-pthread", "-ldl", "-o", program)
	t.Run("exports", func(t *testing.T) {
		functions := functionsIn(t, "hccl/symbols.txt")
		want := slices.Sorted(slices.Values(append(functions, "sagecomm_hccl_facade")))
		require.Equal(t, slices.Compact(want), exportedBy(t, library))
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		for _, name := range functions {
			require.Contains(t, string(text), name+"(", "tests/cabi/hccl.c does not call %s", name)
		}
	})
	t.Run("host", func(t *testing.T) { hcclOnHostMemory(t, program) })
	built := builtEmulator(t, "acl")
	t.Run("devices", func(t *testing.T) { hcclOnDevices(t, program, library, built) })
}

func agree(t *testing.T, program string, how string, size int, variables ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, how, fmt.Sprint(size))
	cmd.Env = append(os.Environ(), variables...)
	output, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(output, []byte("ranks agree")) {
		t.Errorf("%s %d %v: %v\n%s", how, size, variables, err, output)
	}
}

func hcclOnHostMemory(t *testing.T, program string) {
	t.Parallel()
	sizes := []int{1, 2, 3, 4, 8}
	if testing.Short() {
		sizes = []int{2, 3}
	}
	for _, size := range sizes {
		agree(t, program, "processes", size)
		agree(t, program, "threads", size)
	}
	agree(t, program, "leaves", 3)
	agree(t, program, "processes", 2, "TEST_HOSTS=01")
	if !testing.Short() {
		agree(t, program, "processes", 4, "TEST_HOSTS=0011")
		agree(t, program, "leaves", 3, "TEST_HOSTS=012")
	}
}

// Operations come behind what their stream holds, whatever the schedule; the emulator's checker finds no access that nothing orders.
func hcclOnDevices(t *testing.T, program, library, built string) {
	t.Parallel()
	sizes := []int{2, 4}
	if testing.Short() {
		sizes = []int{2}
	}
	schedules := []string{"lazy", "eager", "threaded"}
	for range seeds(t, 8, 1) {
		schedules = append(schedules, "random")
	}
	for i, schedule := range schedules {
		for _, size := range sizes {
			agree(t, program, "npu", size, "LD_PRELOAD="+library, "LD_LIBRARY_PATH="+built, "EMULATOR_HOST_CLOCKS=thread", "EMULATOR_STALL_S=20",
				"EMULATOR_SCHEDULE="+schedule, fmt.Sprint("EMULATOR_SEED=", i))
		}
	}
	agree(t, program, "npu", 2, "TEST_HOSTS=01", "LD_PRELOAD="+library, "LD_LIBRARY_PATH="+built, "EMULATOR_HOST_CLOCKS=thread", "EMULATOR_STALL_S=20")
}
