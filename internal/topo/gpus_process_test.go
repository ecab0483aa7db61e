package topo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ReadGPUs in processes with the libnvidia-ml.so.1 of the emulator (tests/emulator/nvml), and in one without.

const childVariable = "SAGECOMM_TEST_READS_GPUS"

const emulator = "../../tests/emulator"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	for range 2 { // NVML starts again
		if err := json.NewEncoder(os.Stdout).Encode(ReadGPUs(os.Environ())); err != nil {
			panic(err)
		}
	}
}

// builtNVML builds the emulator's libraries once and returns the folder above those of the libraries.
var builtNVML = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs(emulator)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	python := filepath.Join(root, "../../.venv/bin/python")
	if output, err := exec.CommandContext(ctx, python, filepath.Join(root, "build.py"), "nvml", "nvml_without_nvlink").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, output)
	}
	return filepath.Join(root, "build"), nil
})

// gpusOfProcess returns what a process reads with one of the emulator's libraries, and without any for the name "". The loader finds
// the library, and the process binds all symbols when it starts.
func gpusOfProcess(t *testing.T, library, machine string, variables ...string) (got GPUs) {
	t.Helper()
	folder := t.TempDir()
	if library != "" {
		if _, err := os.Stat(filepath.Join(emulator, "../../.venv/bin/python")); err != nil {
			t.Skip("the emulator is built by the Python of .venv, which `make venv` makes")
		}
		built, err := builtNVML()
		require.NoError(t, err)
		folder = filepath.Join(built, library)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"=1", "LD_LIBRARY_PATH="+folder, "LD_BIND_NOW=1",
		"EMULATOR_NVML="+filepath.Join(emulator, "nvml/machines", machine+".txt"))
	child.Env = append(child.Env, variables...)
	child.Stderr = os.Stderr
	output, err := child.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	first, second, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	if first != second {
		t.Errorf("the second time it is %s, the first time %s", second, first)
	}
	require.NoError(t, json.Unmarshal([]byte(first), &got))
	return got
}

func TestEmulatedServer(t *testing.T) {
	got := gpusOfProcess(t, "nvml", "h100")
	require.Len(t, got.List, 8)
	require.Len(t, got.Links, 28)
	require.True(t, got.FullyConnected())
	require.Nil(t, got.Visible)
	cpus, err := ParseCPUSet("56-111,168-223")
	require.NoError(t, err)
	require.Equal(t, GPU{Index: 7, Name: "NVIDIA H100 80GB HBM3", UUID: "GPU-00000007-0000-0000-0000-000000000000", Address: "0000:df:00.0",
		MemoryBytes: 85520809984, Capability: "9.0", Node: 1, CPUs: cpus, NVLinks: 18, NVLink: "4.0"}, got.List[7])
	require.Equal(t, GPULink{A: 0, B: 1, Class: ClassNVLink, Path: "NODE", NVLinks: 18, P2P: true}, got.Links[0])
	require.Equal(t, GPULink{A: 0, B: 7, Class: ClassNVLink, Path: "SYS", NVLinks: 18, P2P: true}, got.Links[6])
}

func TestEmulatedPairsBelowPCISwitches(t *testing.T) {
	got := gpusOfProcess(t, "nvml", "a100")
	require.True(t, got.FullyConnected())
	require.Equal(t, "3.0", got.List[3].NVLink)
	require.Equal(t, []string{"PXB", "NODE", "NODE", "SYS"}, []string{got.Links[0].Path, got.Links[1].Path, got.Links[2].Path, got.Links[3].Path})
}

func TestEmulatedCards(t *testing.T) {
	got := gpusOfProcess(t, "nvml", "pcie")
	require.Equal(t, []GPULink{{A: 0, B: 1, Class: ClassHostBridge, Path: "PHB"}}, got.Links)
	require.False(t, got.FullyConnected())
}

// A library without functions of NVLink is that of an old driver: the rest is known.
func TestNVMLThatLacksFunctions(t *testing.T) {
	got := gpusOfProcess(t, "nvml_without_nvlink", "h100")
	require.Len(t, got.List, 8)
	require.Equal(t, GPULink{A: 0, B: 7, Class: ClassSocket, Path: "SYS", P2P: true}, got.Links[6])
	require.False(t, got.FullyConnected())
}

func TestVariableOfCUDA(t *testing.T) {
	const instance = "MIG-22222222-0000-0000-0000-000000000000"
	for setting, want := range map[string][]VisibleGPU{
		"1,0": {{GPU: 1}, {GPU: 0}},
		"GPU-00000001-0000-0000-0000-000000000000": {{GPU: 1}},
		instance: {{1, instance}},
	} {
		got := gpusOfProcess(t, "nvml", "mig", "CUDA_VISIBLE_DEVICES="+setting)
		require.Len(t, got.List, 2) // NVML shows all of them
		require.Equal(t, &Visible{Setting: setting, Devices: want}, got.Visible)
	}
}

// NVML may know the GPU of an instance and refuse the GPU itself. It is not listed then, and nobody knows the places of what CUDA numbers.
func TestAnInstanceOfAGPUThatIsRefused(t *testing.T) {
	const instance = "MIG-22222222-0000-0000-0000-000000000000"
	got := gpusOfProcess(t, "nvml", "mig-refused", "CUDA_VISIBLE_DEVICES="+instance)
	require.Len(t, got.List, 1)
	require.Equal(t, 0, got.List[0].Index)
	require.Equal(t, &Visible{Setting: instance, Devices: []VisibleGPU{{1, instance}}}, got.Visible)
	require.Nil(t, Topology{GPUs: got}.Places())
}

func TestNVMLThatDoesNotStart(t *testing.T) {
	require.Equal(t, GPUs{Why: "NVML does not start: Driver Not Loaded"}, gpusOfProcess(t, "nvml", "not-loaded"))
}

func TestDriverWithoutGPUs(t *testing.T) {
	require.Equal(t, GPUs{Why: "the driver has 0 GPUs, and none that this process may use"}, gpusOfProcess(t, "nvml", "none"))
}

func TestHostWithoutDriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("this host has an NVIDIA driver")
	}
	if got := gpusOfProcess(t, "", "h100"); !strings.HasPrefix(got.Why, "no NVIDIA driver: libnvidia-ml.so.1: cannot open") || len(got.List) != 0 {
		t.Errorf("%+v", got)
	}
}
