package devices

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/topo"
)

// Two GPUs with NVLinks to a switch and to each other, one of which is cut into instances.
const machineOfNVML = `gpu address=0000:17:00.0 node=0 cpus=0-3 memory=1000 capability=9.0 switch=1 version=6 name=First
gpu address=0000:65:00.0 node=0 cpus=4-7 memory=1000 capability=9.0 switch=1 version=6 name=Second
bridge 0 1 1
mig 1 MIG-22222222-0000-0000-0000-000000000000
`

// gpuCalls are the calls by which a GPU and its links are asked about. NVML_NVLINK_MAX_LINKS links are asked about, two of which there are.
func gpuCalls(device string, index int, most int64) []string {
	calls := []string{fmt.Sprintf("nvmlDeviceGetHandleByIndex_v2 index=%d device=*", index), "-> " + device}
	for link := range most {
		of := fmt.Sprint("device=", device, " link=", link)
		calls = append(calls, "nvmlDeviceGetNvLinkState "+of+" isActive=*")
		if link >= 2 {
			continue
		}
		calls = append(calls, "nvmlDeviceGetNvLinkVersion "+of+" version=*", "nvmlDeviceGetNvLinkRemoteDeviceType "+of+" pNvLinkDeviceType=*")
		if link == 1 {
			calls = append(calls, "nvmlDeviceGetNvLinkRemotePciInfo_v2 "+of+" pci=*")
		}
	}
	return append(calls,
		"nvmlDeviceGetName device="+device+" name=* length=NVML_DEVICE_NAME_V2_BUFFER_SIZE",
		"nvmlDeviceGetUUID device="+device+" uuid=* length=NVML_DEVICE_UUID_V2_BUFFER_SIZE",
		"nvmlDeviceGetPciInfo_v3 device="+device+" pci=*",
		"nvmlDeviceGetMemoryInfo device="+device+" memory=*",
		"nvmlDeviceGetCudaComputeCapability device="+device+" major=* minor=*",
		"nvmlDeviceGetNumaNodeId device="+device+" node=*",
		"nvmlDeviceGetCpuAffinity device="+device+" cpuSetSize=16 cpuSet=*") // words of 64 bits: 1024 cpus
}

// folderOfNVML returns a folder with the emulated NVML, nothing in the processes of a test.
func folderOfNVML(t *testing.T) string {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return ""
	}
	at := folder(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, "../../.venv/bin/python", "../emulator/build.py", "nvml").CombinedOutput()
	require.NoError(t, err, "%s", output)
	return filepath.Join(at, "nvml")
}

// onNVML runs a part of a test in a process with an emulated NVML, whose machine is a text.
func onNVML(t *testing.T, machine string, body func(t *testing.T, r *recording, h *header)) {
	t.Helper()
	libraries, folder := folderOfNVML(t), t.TempDir()
	path := filepath.Join(folder, "machine")
	require.NoError(t, os.WriteFile(path, []byte(machine), 0o600))
	isolated(t, libraries, []string{"EMULATOR_CALLS=" + filepath.Join(folder, "calls"), "EMULATOR_NVML=" + path}, func(t *testing.T) {
		module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
		require.NoError(t, err)
		h := readHeader(t, filepath.Join(strings.TrimSpace(string(module)), "pkg/nvml/nvml.h"))
		calls := os.Getenv("EMULATOR_CALLS")
		require.NoError(t, os.WriteFile(calls, nil, 0o600))
		body(t, &recording{t: t, path: calls, vars: map[string]uintptr{}}, h)
	})
}

// Each call of NVML has the arguments that its line has, in the order of nvml.h. There is a line for each function that package topo calls.
func TestArgumentsOfNVML(t *testing.T) {
	onNVML(t, machineOfNVML, func(t *testing.T, r *recording, h *header) {
		most := h.numbers["NVML_NVLINK_MAX_LINKS"]
		require.Positive(t, most)
		p2p := "nvmlDeviceGetP2PStatus device1=%s device2=%s p2pIndex=NVML_P2P_CAPS_INDEX_READ p2pStatus=*"
		lines := slices.Concat([]string{"nvmlInit_v2", "nvmlDeviceGetCount_v2 deviceCount=*"}, gpuCalls("first", 0, most), gpuCalls("second", 1, most), []string{
			"nvmlDeviceGetHandleByUUID uuid=* device=*", "text MIG-22222222-0000-0000-0000-000000000000", "-> instance",
			"nvmlDeviceGetDeviceHandleFromMigDeviceHandle migDevice=instance device=*", "-> second",
			"nvmlDeviceGetIndex device=second index=*",
			"nvmlDeviceGetTopologyCommonAncestor device1=first device2=second pathInfo=*",
			fmt.Sprintf(p2p, "first", "second"), fmt.Sprintf(p2p, "second", "first"),
			"nvmlShutdown"})
		expected, made := []string{}, map[string]bool{}
		for _, line := range lines {
			expected = append(expected, h.call(line))
			made[strings.Fields(line)[0]] = true
		}
		r.expect("ReadGPUs", func() error {
			found := topo.ReadGPUs([]string{"CUDA_VISIBLE_DEVICES=MIG-22222222-0000-0000-0000-000000000000"})
			require.Len(t, found.List, 2, found.Why)
			return nil
		}, expected...)
		calls := callsOfTopo(t, h)
		require.Contains(t, calls, "nvmlDeviceGetName")
		for _, name := range calls {
			require.True(t, made[name], "package topo calls %s, which has no line here", name)
		}
	})
}

// The text of an error is that of its number.
func TestArgumentsOfAnErrorOfNVML(t *testing.T) {
	onNVML(t, "init 9\n", func(t *testing.T, r *recording, h *header) {
		r.expect("ReadGPUs", func() error {
			require.Equal(t, "NVML does not start: Driver Not Loaded", topo.ReadGPUs(nil).Why)
			return nil
		}, h.call("nvmlInit_v2"), h.call("nvmlErrorString result=NVML_ERROR_DRIVER_NOT_LOADED"))
	})
}

// callsOfTopo returns the functions of NVML that package topo calls. go-nvml's methods have their names, without what these begin with.
func callsOfTopo(t *testing.T, h *header) (list []string) {
	t.Helper()
	sources, err := filepath.Glob("../../internal/topo/*.go")
	require.NoError(t, err)
	for _, path := range sources {
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			method, is := call.Fun.(*ast.SelectorExpr)
			if !is {
				return true
			}
			for _, prefix := range []string{"nvml", "nvmlDevice"} {
				if name := h.symbol(prefix + method.Sel.Name); h.parameters[name] != nil {
					list = append(list, name)
				}
			}
			return true
		})
	}
	slices.Sort(list)
	return slices.Compact(list)
}
