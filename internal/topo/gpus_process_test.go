package topo

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ReadGPUs in processes with a libnvidia-ml.so.1 of their own, which testdata/nvml/nvml.c becomes, and in one without.

const childVariable = "SAGECOMM_TEST_READS_GPUS"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	for range 2 { // NVML starts again
		if err := json.NewEncoder(os.Stdout).Encode(ReadGPUs()); err != nil {
			panic(err)
		}
	}
}

// gpusOfProcess returns what a process with an emulated NVML reads, and without flags what one reads that has none.
func gpusOfProcess(t *testing.T, flags ...string) (got GPUs) {
	t.Helper()
	dir := t.TempDir()
	if flags != nil {
		header, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
		require.NoError(t, err)
		command := append(strings.Fields("gcc -std=c11 -shared -fPIC -Wall -Wextra -Werror -Wl,-soname,libnvidia-ml.so.1"), flags...)
		command = append(command, "-I"+strings.TrimSpace(string(header)), "testdata/nvml/nvml.c", "-o", filepath.Join(dir, nvmlLibrary))
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"=1", "LD_LIBRARY_PATH="+dir, "LD_BIND_NOW=1")
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

func TestEmulatedGPUs(t *testing.T) {
	got := gpusOfProcess(t, "-O1")
	if len(got.List) != 2 || !slices.Equal(got.Links, []GPULink{{A: 0, B: 1, Path: "SYS", NVLinks: 4, P2P: true}}) || !got.FullyConnected() {
		t.Fatalf("%+v", got)
	}
	g := got.List[1]
	if g.Name != "Emulated GPU 1" || g.UUID != "GPU-1" || g.Address != "0000:1b:00.0" || g.MemoryBytes != 80<<30 || g.Capability != "9.0" ||
		g.Node != 1 || g.CPUs.String() != "2-3" || g.NVLinks != 4 {
		t.Errorf("%+v", g)
	}
}

func TestNVMLThatLacksFunctions(t *testing.T) {
	got := gpusOfProcess(t, "-DNO_NVLINK")
	if len(got.List) != 2 || !slices.Equal(got.Links, []GPULink{{A: 0, B: 1, Path: "SYS", P2P: true}}) || got.FullyConnected() {
		t.Errorf("%+v", got)
	}
}

func TestNVMLThatDoesNotStart(t *testing.T) {
	if got := gpusOfProcess(t, "-DNO_START"); got.Why != "NVML does not start: Driver Not Loaded" || len(got.List) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestHostWithoutDriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("this host has an NVIDIA driver")
	}
	if got := gpusOfProcess(t); !strings.HasPrefix(got.Why, "no NVIDIA driver: libnvidia-ml.so.1: cannot open") || len(got.List) != 0 {
		t.Errorf("%+v", got)
	}
}
