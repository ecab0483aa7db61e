package cndev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Pairs in processes with the libcndev.so of the emulator (tests/emulator/cndev), which the loader finds, and in one without.

const childVariable = "SAGECOMM_TEST_READS_MLUS"

const emulator = "../../../tests/emulator"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	for range 2 {
		fmt.Println(Pairs())
	}
}

func pairsOfProcess(t *testing.T, folder, machine string) string {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"=1", "LD_LIBRARY_PATH="+folder, "LD_BIND_NOW=1",
		"EMULATOR_CNDEV="+filepath.Join(emulator, "cndev/machines", machine+".txt"))
	output, err := child.CombinedOutput()
	require.NoError(t, err, string(output))
	first, second, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	require.Equal(t, first, second)
	return first
}

// In both generations of the library: where a device is its index, and where it has a handle.
func TestPairsOfAnEmulatedMachine(t *testing.T) {
	python := filepath.Join(emulator, "../../.venv/bin/python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the emulator is built by the Python of .venv, which `make venv` makes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, name := range []string{"cndev", "cndev_with_handles"} {
		output, err := exec.CommandContext(ctx, python, filepath.Join(emulator, "build.py"), name).CombinedOutput()
		require.NoError(t, err, string(output))
		folder, err := filepath.Abs(filepath.Join(emulator, "build", name))
		require.NoError(t, err)
		require.Equal(t, "[[0000:1a:00.0 0000:1b:00.0] [0000:3d:00.0 0001:3e:00.0]] <nil>", pairsOfProcess(t, folder, "four-devices"), name)
		require.Equal(t, "[] no MLU driver: cndevInit returned 1", pairsOfProcess(t, folder, "not-started"), name)
	}
}

func TestHostWithoutDriver(t *testing.T) {
	if got := pairsOfProcess(t, t.TempDir(), "four-devices"); !strings.Contains(got, "<nil>") {
		require.Contains(t, got, "[] no MLU driver: "+library+": cannot open shared object file")
	}
}
