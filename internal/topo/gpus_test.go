package topo

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/stretchr/testify/require"
)

// Hosts of which NVML tells: go-nvml's mock of eight A100, changed to what other machines answer. The number of links, levels and
// affinities are those of NVIDIA's own machines (DGX H100 user guide, "nvidia-smi topo -m").

// server is a host of GPUs, four to a socket, each with links to switches.
func server(name string, gpus, links int, level func(a, b int) nvml.GpuTopologyLevel) *dgxa100.Server {
	s := dgxa100.New()
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return gpus, nvml.SUCCESS }
	for i := range s.Devices {
		d := s.Devices[i].(*dgxa100.Device)
		d.Name = name
		d.GetPciInfoFunc = func() (info nvml.PciInfo, rc nvml.Return) {
			for k, c := range []byte(fmt.Sprintf("0000000%d:%02X:00.0", i/4, 0x1b+i)) {
				info.BusId[k] = c
			}
			return info, nvml.SUCCESS
		}
		d.GetTopologyCommonAncestorFunc = func(o nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			other, rc := o.GetIndex()
			return level(i, other), rc
		}
		d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			if link < links {
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			}
			return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
		}
		d.GetNvLinkVersionFunc = func(int) (uint32, nvml.Return) {
			if links == 12 { // an A100
				return uint32(nvml.NVLINK_VERSION_3_0), nvml.SUCCESS
			}
			return uint32(nvml.NVLINK_VERSION_4_0), nvml.SUCCESS
		}
		d.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		d.GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
			return nvml.P2P_STATUS_OK, nvml.SUCCESS
		}
		d.GetCpuAffinityFunc = func(words int) ([]uint, nvml.Return) {
			mask := make([]uint, words)
			mask[i/4] = 0xff
			return mask, nvml.SUCCESS
		}
		d.GetNumaNodeIdFunc = func() (int, nvml.Return) { return i / 4, nvml.SUCCESS }
	}
	return s
}

func sockets(a, b int) nvml.GpuTopologyLevel {
	if a/4 == b/4 {
		return nvml.TOPOLOGY_NODE
	}
	return nvml.TOPOLOGY_SYSTEM
}

func TestGPUsBehindSwitches(t *testing.T) {
	for _, e := range []struct {
		name    string
		links   int
		version string
	}{{"NVIDIA H100 80GB HBM3", 18, "4.0"}, {"NVIDIA A100-SXM4-40GB", 12, "3.0"}} {
		got := gpusOf(server(e.name, 8, e.links, sockets), nil)
		require.Len(t, got.List, 8, e.name)
		require.Len(t, got.Links, 28, e.name)
		require.Empty(t, got.Why, e.name)
		require.True(t, got.FullyConnected(), e.name)
		for i, g := range got.List {
			require.Equal(t, fmt.Sprintf("000%d:%02x:00.0", i/4, 0x1b+i), g.Address)
			require.Equal(t, i, g.Index)
			require.Equal(t, e.name, g.Name)
			require.Equal(t, e.links, g.NVLinks)
			require.Equal(t, e.version, g.NVLink)
			require.Equal(t, ID(i/4), g.Node)
			require.NotEmpty(t, g.UUID)
			require.NotZero(t, g.MemoryBytes)
			require.NotEmpty(t, g.Capability)
			first := i / 4 * 64
			require.Equal(t, CPUSet{first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, first + 7}, g.CPUs)
		}
		for _, link := range got.Links {
			require.Less(t, link.A, link.B)
			require.Equal(t, GPULink{A: link.A, B: link.B, Class: ClassNVLink, Path: pciPaths[sockets(link.A, link.B)], NVLinks: e.links, P2P: true}, link)
		}
	}
}

// Two cards in slots of one host bridge, of which the driver says that they cannot read each other.
func TestGPUsOnPCI(t *testing.T) {
	s := server("NVIDIA L4", 2, 0, func(a, b int) nvml.GpuTopologyLevel { return nvml.TOPOLOGY_HOSTBRIDGE })
	s.Devices[1].(*dgxa100.Device).GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		return nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED, nvml.SUCCESS
	}
	got := gpusOf(s, nil)
	require.Len(t, got.List, 2)
	require.False(t, got.FullyConnected())
	require.Equal(t, []GPULink{{A: 0, B: 1, Class: ClassHostBridge, Path: "PHB"}}, got.Links)
}

// Pairs of cards with bridges: links go from GPU to GPU, and only some pairs have any.
func TestGPUsWithBridges(t *testing.T) {
	s := server("NVIDIA A100 80GB PCIe", 4, 12, func(a, b int) nvml.GpuTopologyLevel { return nvml.TOPOLOGY_SINGLE })
	for i := range 4 {
		d := s.Devices[i].(*dgxa100.Device)
		d.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
		}
		d.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return s.Devices[i^1].GetPciInfo() }
	}
	got := gpusOf(s, nil)
	for _, link := range got.Links {
		want := 0
		if link.A^1 == link.B {
			want = 12
		}
		require.Equal(t, want, link.NVLinks, "%+v", link)
	}
	require.Len(t, got.Links, 6)
	require.False(t, got.FullyConnected())
}

// One GPU has no pair to be connected, whoever shares it.
func TestOneGPU(t *testing.T) {
	got := gpusOf(server("NVIDIA H100 PCIe", 1, 0, sockets), nil)
	require.Len(t, got.List, 1)
	require.Empty(t, got.Links)
	require.False(t, got.FullyConnected())
	require.Empty(t, got.Why)
}

func TestHostsWithoutGPUs(t *testing.T) {
	none := server("", 0, 0, sockets)
	broken := &mock.Interface{DeviceGetCountFunc: func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }}
	foreign := server("", 1, 0, sockets)
	foreign.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	for want, library := range map[string]nvml.Interface{
		"the driver has 0 GPUs, and none that this process may use":               none,
		"the driver has 1 GPUs, and none that this process may use":               foreign,
		"NVML does not count the GPUs: " + fmt.Sprint(nvml.ERROR_UNKNOWN.Error()): broken,
	} {
		got := gpusOf(library, nil)
		require.Equal(t, want, got.Why)
		require.Empty(t, got.List)
	}
}

// Of a GPU of which the driver tells nothing the index is known.
func TestGPUThatTellsNothing(t *testing.T) {
	refuse := nvml.ERROR_NOT_SUPPORTED
	device := &mock.Device{
		GetNameFunc:                   func() (string, nvml.Return) { return "", refuse },
		GetUUIDFunc:                   func() (string, nvml.Return) { return "", refuse },
		GetPciInfoFunc:                func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, refuse },
		GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, refuse },
		GetCudaComputeCapabilityFunc:  func() (int, int, nvml.Return) { return 0, 0, refuse },
		GetNumaNodeIdFunc:             func() (int, nvml.Return) { return 0, refuse },
		GetCpuAffinityFunc:            func(int) ([]uint, nvml.Return) { return nil, refuse },
		GetNvLinkStateFunc:            func(int) (nvml.EnableState, nvml.Return) { return 0, refuse },
		GetTopologyCommonAncestorFunc: func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return 0, refuse },
		GetP2PStatusFunc:              func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) { return 0, refuse },
	}
	got := gpusOf(&mock.Interface{DeviceGetCountFunc: func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return device, nvml.SUCCESS }}, nil)
	require.Len(t, got.List, 2)
	require.Equal(t, []GPULink{{A: 0, B: 1, Class: ClassUnknown}}, got.Links)
	for i, g := range got.List {
		require.Equal(t, i, g.Index)
		require.Equal(t, ID(unknown), g.Node)
		require.Empty(t, g.Name)
		require.Nil(t, g.CPUs)
	}
}
