package algo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

func TestNamesOfLinkClasses(t *testing.T) {
	for c := range linkClasses {
		got, err := ParseLinkClass(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	_, err := ParseLinkClass("pigeon")
	require.ErrorContains(t, err, `unknown class of links "pigeon"`)
}

// A closer class is never dearer, whatever else is known of the link.
func TestCloserLinksCostLess(t *testing.T) {
	p := DefaultParams()
	for _, pci := range []float64{0, 8 * 16, 16 * 16, 32 * 16} {
		before := cost.Link{}
		for c := SameDevice; c <= Network; c++ {
			link := DeviceLink{Class: c, PCI: pci}
			if c == NVLink {
				link.NVLinks, link.Version = 4, "3.0"
			}
			got := link.cost(p)
			require.LessOrEqual(t, before.Byte, got.Byte, "%v at %g GT/s", c, pci)
			require.LessOrEqual(t, before.Latency, got.Latency, "%v at %g GT/s", c, pci)
			before = got
		}
	}
}

func TestRatesOfDeviceLinks(t *testing.T) {
	p := DefaultParams()
	for _, c := range []struct {
		link DeviceLink
		rate float64 // GB/s
	}{
		{DeviceLink{Class: NVLink, NVLinks: 18, Version: "4.0"}, 18 * 20.6},
		{DeviceLink{Class: NVLink, NVLinks: 12, Version: "3.0"}, 12 * 20},
		{DeviceLink{Class: NVLink, NVLinks: 18, Version: "5.0"}, 18 * 40.1},
		{DeviceLink{Class: NVLink, NVLinks: 2}, 2 * 20.6},
		{DeviceLink{Class: PCISwitch}, 57.6},               // as of the fifth generation
		{DeviceLink{Class: PCISwitch, PCI: 16 * 16}, 28.8}, // fourth generation, 16 lanes
		{DeviceLink{Class: HostBridge, PCI: 16 * 16}, 24},
		{DeviceLink{Class: Socket}, 16},
		{DeviceLink{Class: Socket, PCI: 8 * 16}, 12},
	} {
		require.InEpsilon(t, c.rate, 1e-9/c.link.cost(p).Byte, 1e-3, "%+v", c.link)
	}
	require.Equal(t, p.Network, DeviceLink{Class: Network}.cost(p))
	require.Equal(t, p.Channel, DeviceLink{Class: UnknownLink}.cost(p))
}

// Two hosts of two pairs: NVLink inside a pair, a socket between the pairs of a host.
func TestLinksOfAGroup(t *testing.T) {
	nvlink, socket, network := DeviceLink{Class: NVLink, NVLinks: 4, Version: "3.0"}, DeviceLink{Class: Socket}, DeviceLink{Class: Network}
	between := func(a, b int) DeviceLink {
		require.Less(t, a, b)
		switch {
		case a/4 != b/4:
			return network
		case a/2 != b/2:
			return socket
		}
		return nvlink
	}
	links := selector(t, 8, "").LinkDevices(between)
	require.Equal(t, []DeviceLink{nvlink, socket, network}, links.Kinds)
	require.Equal(t, []int{4, 8, 16}, links.Pairs)
	require.Len(t, links.Costs.Links, 3)
	require.Equal(t, []int{0, 1, 2, 2}, []int{links.Costs.Class(1, 0), links.Costs.Class(3, 0), links.Costs.Class(0, 7), links.Costs.Class(7, 0)})
	require.Empty(t, LinkDevices(1, between, DefaultParams()).Kinds)
}

// The costs price a plan: a ring over NVLink is faster than one whose messages cross a socket, by about the ratio of the rates.
func TestPlansOverDeviceLinks(t *testing.T) {
	price := func(link DeviceLink) float64 {
		const size = 4
		g, err := sendrecv.Plans(coll.AllReduce, sendrecv.Ring, sendrecv.Place{Size: size, Chunk: 1 << 20})
		require.NoError(t, err)
		took, err := cost.Price(g, plan.Lengths{Bytes: 64 << 20}, LinkDevices(size, func(int, int) DeviceLink { return link }, DefaultParams()).Costs)
		require.NoError(t, err)
		return took.Seconds()
	}
	require.Greater(t, price(DeviceLink{Class: Socket}), 2*price(DeviceLink{Class: PCISwitch}))
	require.Greater(t, price(DeviceLink{Class: PCISwitch}), price(DeviceLink{Class: NVLink, NVLinks: 18, Version: "4.0"}))
}
