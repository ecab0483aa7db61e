package dcmi

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

// Pairs in processes with the libdcmi.so of the emulator (tests/emulator/dcmi), which the loader finds, and in one without.

const childVariable = "SAGECOMM_TEST_READS_NPUS"

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
		"EMULATOR_DCMI="+filepath.Join(emulator, "dcmi/machines", machine+".txt"))
	output, err := child.CombinedOutput()
	require.NoError(t, err, string(output))
	first, second, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	require.Equal(t, first, second)
	return first
}

func TestPairsOfAnEmulatedMachine(t *testing.T) {
	python := filepath.Join(emulator, "../../.venv/bin/python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the emulator is built by the Python of .venv, which `make venv` makes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, python, filepath.Join(emulator, "build.py"), "dcmi").CombinedOutput()
	require.NoError(t, err, string(output))
	folder, err := filepath.Abs(filepath.Join(emulator, "build/dcmi"))
	require.NoError(t, err)
	require.Equal(t, "[[0000:83:00.0 0000:84:00.0] [0001:03:00.0 0001:04:00.0]] <nil>", pairsOfProcess(t, folder, "three-cards"))
	require.Equal(t, "[] no NPU driver: dcmi_init returned -8005", pairsOfProcess(t, folder, "not-started"))
}

func TestHostWithoutDriver(t *testing.T) {
	if _, err := os.Stat(where[1]); err == nil {
		t.Skip("this host has a driver of NPUs")
	}
	require.Contains(t, pairsOfProcess(t, t.TempDir(), "three-cards"), "[] no NPU driver: "+where[1]+": cannot open shared object file")
}
