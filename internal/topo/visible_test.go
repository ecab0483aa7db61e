package topo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVisibleGPUs(t *testing.T) {
	alike := []GPU{{Index: 0, UUID: "GPU-a1"}, {Index: 1, UUID: "GPU-a2"}, {Index: 3, UUID: "GPU-b1"}} // NVML refuses GPU 2
	different := []GPU{{Index: 0, Name: "L4", UUID: "GPU-a1"}, {Index: 1, Name: "H100", UUID: "GPU-b1"}}
	const instance = "MIG-22222222-0000-0000-0000-000000000000"
	parent := func(uuid string) (int, bool) { return 1, uuid == instance }
	for _, c := range []struct {
		name    string
		gpus    []GPU
		environ string
		devices []VisibleGPU
		why     string
	}{
		{"numbers, in their order", alike, "CUDA_VISIBLE_DEVICES=2,0", []VisibleGPU{{GPU: 3}, {GPU: 0}}, ""},
		{"white space", alike, "CUDA_VISIBLE_DEVICES= 1 , 0", []VisibleGPU{{GPU: 1}, {GPU: 0}}, ""},
		{"UUIDs", alike, "CUDA_VISIBLE_DEVICES=GPU-b1,GPU-a2", []VisibleGPU{{GPU: 3}, {GPU: 1}}, ""},
		{"the beginning of a UUID", alike, "CUDA_VISIBLE_DEVICES=GPU-b", []VisibleGPU{{GPU: 3}}, ""},
		{"of two UUIDs", alike, "CUDA_VISIBLE_DEVICES=GPU-a", []VisibleGPU{}, "GPU-a is the beginning of several UUIDs"},
		{"an instance", alike, "CUDA_VISIBLE_DEVICES=" + instance, []VisibleGPU{{1, instance}}, ""},
		{"an instance that is not there", alike, "CUDA_VISIBLE_DEVICES=MIG-3", []VisibleGPU{}, "there is no instance MIG-3"},
		{"an instance as older drivers name it", alike, "CUDA_VISIBLE_DEVICES=MIG-GPU-b1/1/0", []VisibleGPU{{3, "MIG-GPU-b1/1/0"}}, ""},
		{"nothing", alike, "CUDA_VISIBLE_DEVICES=", []VisibleGPU{}, ""},
		{"-1", alike, "CUDA_VISIBLE_DEVICES=-1", []VisibleGPU{}, "there is no GPU -1"},
		{"the list ends before what is no GPU", alike, "CUDA_VISIBLE_DEVICES=1,7,0", []VisibleGPU{{GPU: 1}}, "there is no GPU 7"},
		{"or no name", alike, "CUDA_VISIBLE_DEVICES=0,cuda,1", []VisibleGPU{{GPU: 0}}, `there is no GPU "cuda"`},
		{"a GPU twice", alike, "CUDA_VISIBLE_DEVICES=0,1,0", []VisibleGPU{}, `"0" is listed twice`},
		{"a GPU under two names", alike, "CUDA_VISIBLE_DEVICES=0,GPU-a1", []VisibleGPU{}, `"GPU-a1" is listed twice`},
		{"GPUs that differ", different, "CUDA_VISIBLE_DEVICES=1", []VisibleGPU{},
			"the GPUs differ, and only CUDA_DEVICE_ORDER=PCI_BUS_ID numbers those as here"},
		{"in the order of NVML", different, "CUDA_DEVICE_ORDER=PCI_BUS_ID;CUDA_VISIBLE_DEVICES=1", []VisibleGPU{{GPU: 1}}, ""},
		{"a UUID has no order", different, "CUDA_VISIBLE_DEVICES=GPU-b1", []VisibleGPU{{GPU: 1}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := visibleOf(c.gpus, strings.Split(c.environ, ";"), parent)
			_, setting, _ := strings.Cut(c.environ, "VISIBLE_DEVICES=")
			require.Equal(t, &Visible{setting, c.devices, c.why}, got)
		})
	}
	require.Nil(t, visibleOf(alike, []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}, parent))
	require.True(t, inOrder(alike, nil))
	require.True(t, inOrder(different, []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}))
	require.False(t, inOrder(different, []string{"CUDA_DEVICE_ORDER=FASTEST_FIRST"}))
	require.False(t, inOrder(different, nil))
}
