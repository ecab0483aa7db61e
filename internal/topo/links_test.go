package topo

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPathsThroughThePCITree(t *testing.T) {
	under := func(node ID, path string) PCIDevice { return PCIDevice{Node: node, Bridges: strings.Fields(path)} }
	const root, port, upstream = "pci0000:15", "pci0000:15 0000:15:01.0", "pci0000:15 0000:15:01.0 0000:16:00.0"
	for _, c := range []struct {
		name string
		a, b PCIDevice
		want string
	}{
		{"two ports of one switch", under(0, upstream+" 0000:17:00.0"), under(0, upstream+" 0000:17:01.0"), "PIX"},
		{"two functions of one card", under(0, port), under(0, port), "PIX"},
		{"a switch below a switch", under(0, upstream+" 0000:17:00.0"), under(0, upstream+" 0000:17:01.0 0000:18:00.0 0000:19:00.0"), "PXB"},
		{"two root ports of one host bridge", under(0, port), under(0, root+" 0000:15:02.0"), "PHB"},
		{"devices of the host bridge itself, as in a virtual machine", under(unknown, root), under(unknown, root), "PHB"},
		{"two host bridges of one node", under(1, port), under(1, "pci0000:38 0000:38:01.0"), "NODE"},
		{"two nodes", under(0, port), under(1, "pci0000:80 0000:80:01.0"), "SYS"},
		{"two host bridges, of nodes that are not known", under(unknown, port), under(unknown, "pci0000:38 0000:38:01.0"), "SYS"},
		{"a place that is not known", under(0, port), under(0, ""), ""},
	} {
		require.Equal(t, c.want, PCIPath(c.a, c.b), c.name)
		require.Equal(t, c.want, PCIPath(c.b, c.a), c.name)
	}
}

func TestBridgesOfATree(t *testing.T) {
	const address = "0000:17:00.0"
	for line, want := range map[string][]string{
		" -> ../../../devices/pci0000:15/0000:15:01.0/" + address: {"pci0000:15", "0000:15:01.0"},
		" -> ../../../devices/pci10000:e0/" + address:             {"pci10000:e0"},
		" -> ../../../devices/platform/" + address:                nil,
		" -> ../../../devices/pci0000:15/bridge/" + address:       nil, // no kernel writes that
		"/": nil, // the directory itself, in a tree without links
	} {
		root := unpack(t, "sys/bus/pci/devices/"+address+line)
		if _, target, linked := strings.Cut(line, " -> ../../../"); linked {
			root = unpack(t, "sys/bus/pci/devices/"+address+line+"\nsys/"+target+"/")
		}
		require.Equal(t, want, tree{root: root}.bridges(address), line)
	}
}

// NVIDIA's driver tells more of its GPUs than sysfs does. A pair is listed once.
func TestPairsThatNVMLKnows(t *testing.T) {
	links := []Link{{Ends: [2]string{"a", "b"}}, {Ends: [2]string{"a", "c"}}, {Ends: [2]string{"c", "d"}}}
	gpus := GPUs{List: []GPU{{Address: "a"}, {Address: "b"}}}
	require.Equal(t, []Link{{Ends: [2]string{"a", "c"}}, {Ends: [2]string{"c", "d"}}}, withoutGPUs(links, gpus))
}

// The drivers of NPUs and MLUs know which of them HCCS and MLU-Link join; all else is as sysfs shows it.
func TestLinksThatDriversKnow(t *testing.T) {
	host := Read(load(t, "testdata/ascend.tree"))
	before := slices.Clone(host.Links)
	a, b, c := host.Accelerators[0].Address, host.Accelerators[1].Address, host.Accelerators[4].Address
	known := func() ([][2]string, error) { return [][2]string{{b, a}, {a, c}, {a, "0000:ff:00.0"}}, nil }
	require.Empty(t, host.mark(huawei, kindHCCS, ClassHCCS, known))
	for i, link := range host.Links {
		want := before[i]
		if want.Ends == [2]string{a, b} || want.Ends == [2]string{a, c} {
			want.Kind, want.Class = kindHCCS, ClassHCCS
		}
		require.Equal(t, want, link)
	}
	require.Equal(t, "no NPU driver", host.mark(huawei, kindHCCS, ClassHCCS, func() ([][2]string, error) { return nil, errors.New("no NPU driver") }))
	host.mark(cambricon, kindMLULink, ClassMLULink, func() ([][2]string, error) { panic("a host without MLUs has no driver of theirs to ask") })

	others := Read(load(t, "testdata/cambricon.tree"))
	others.mark(huawei, kindHCCS, ClassHCCS, func() ([][2]string, error) { panic("a host without NPUs has no driver of theirs to ask") })
	a, b = others.Accelerators[0].Address, others.Accelerators[1].Address
	require.Empty(t, others.mark(cambricon, kindMLULink, ClassMLULink, func() ([][2]string, error) { return [][2]string{{a, b}}, nil }))
	i := slices.IndexFunc(others.Links, func(l Link) bool { return l.Ends == [2]string{a, b} })
	require.Equal(t, []string{kindMLULink, ClassMLULink}, []string{others.Links[i].Kind, others.Links[i].Class})
}

func TestLinksAreThoseOfOneMaker(t *testing.T) {
	device := func(address, vendor, name string) PCIDevice {
		return PCIDevice{Address: address, Vendor: vendor, VendorName: name, Bridges: []string{"pci0000:00"}}
	}
	npu, gpu := device("n0", "0x19e5", "Huawei"), device("g0", "0x10de", "NVIDIA")
	display := device("d0", "0x1a03", "") // of the host's management
	require.Empty(t, linksOf([]PCIDevice{npu, gpu, display, display}))
	want := []Link{{kindPCIe, ClassHostBridge, [2]string{"n0", "n1"}, "PHB"}}
	require.Equal(t, want, linksOf([]PCIDevice{npu, gpu, device("n1", "0x19e5", "Huawei")}))
}
