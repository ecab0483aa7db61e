package topo

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a rank tells the others of the GPUs that CUDA numbers in its process.
func TestPlacesOfGPUs(t *testing.T) {
	host := Topology{
		Accelerators: []PCIDevice{{Address: "0000:1b:00.0", PCI: 512}, {Address: "0000:1c:00.0", PCI: 256}},
		GPUs: GPUs{
			List: []GPU{{Index: 0, Address: "0000:1b:00.0"}, {Index: 1, Address: "0000:1c:00.0", NVLink: "4.0"}, {Index: 3, Address: "0000:1d:00.0", NVLink: "4.0"}},
			Links: []GPULink{
				{A: 0, B: 1, Class: ClassPCISwitch}, {A: 0, B: 3, Class: ClassSocket}, {A: 1, B: 3, Class: ClassNVLink, NVLinks: 18},
			},
		},
	}
	places := host.Places()
	require.Len(t, places, 3)
	require.Equal(t, Way{Class: ClassPCISwitch, PCI: 256}, places[0].To(places[1]))
	require.Equal(t, Way{Class: ClassSocket}, places[0].To(places[2]))
	require.Equal(t, Way{Class: ClassNVLink, NVLinks: 18, Version: "4.0"}, places[2].To(places[1]))
	require.Equal(t, Way{Class: ClassSameDevice}, places[2].To(places[2]))
	require.Equal(t, places[0].To(places[1]), Place{Address: "0000:1b:00.0"}.To(places[1])) // one of the two knows
	require.Equal(t, Way{Class: ClassUnknown}, places[0].To(Place{Address: "0000:ff:00.0"}))

	host.GPUs.Unordered = true // then the entries of the variable alone tell which GPU has which number
	require.Nil(t, host.Places())
	host.GPUs.Visible = &Visible{Devices: []VisibleGPU{{GPU: 3}, {GPU: 1, Instance: "MIG-1"}, {GPU: 1, Instance: "MIG-2"}}}
	visible := host.Places()
	require.Equal(t, []Place{places[2], places[1], places[1]}, visible)
	require.Equal(t, Way{Class: ClassSameDevice}, visible[1].To(visible[2])) // two instances of one GPU

	host.GPUs.Visible.Devices = []VisibleGPU{{GPU: 3}, {GPU: 2, Instance: "MIG-3"}} // NVML refuses GPU 2, and names it as the GPU of the instance
	require.Nil(t, host.Places())
	host.GPUs.Visible.Devices = []VisibleGPU{{GPU: 1}}
	require.Len(t, host.Places(), 1)

	host.GPUs.List[1].Address = ""
	require.Nil(t, host.Places())
	require.Nil(t, Topology{}.Places())
}

func TestTransferRates(t *testing.T) {
	for _, c := range []struct {
		speed string
		lanes int64
		want  float64
	}{
		{"16.0 GT/s PCIe", 16, 256}, {"8 GT/s", 16, 128}, {"2.5 GT/s PCIe", 1, 2.5}, {"Unknown", 16, 0}, {"Unknown", 255, 0}, {"16.0 GT/s PCIe", 255, 0},
		{"", 0, 0}, {"NaN GT/s", 16, 0}, {"-1 GT/s", 16, 0},
	} {
		require.Equal(t, c.want, transferRate(c.speed, c.lanes), c.speed)
	}
}

// The paths that nvidia-smi names have a class each.
func TestClassesOfPaths(t *testing.T) {
	for _, path := range pciPaths {
		require.NotEqual(t, ClassUnknown, classOf(path), path)
	}
	require.Equal(t, ClassUnknown, classOf(""))
}
