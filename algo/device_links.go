package algo

import (
	"cmp"
	"fmt"
	"slices"

	"sagecomm/algo/cluster"
	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
)

// LinkClass says how the devices of two ranks reach each other. The classes are in the order of distance.
type LinkClass int

const (
	SameDevice  LinkClass = iota // two ranks use one device, or instances of one
	NVLink                       // directly or through switches
	PCISwitch                    // PCI bridges
	HostBridge                   // a processor, or several host bridges of one NUMA node
	Socket                       // NUMA nodes
	Network                      // hosts
	UnknownLink                  // what lies between is not known: host memory is, always
	linkClasses
)

// linkNames holds the names of classes, which package topo uses too.
var linkNames = [linkClasses]string{"same device", "NVLink", "PCI switch", "host bridge", "socket", "network", "not known"}

func (c LinkClass) String() string { return linkNames[c] }

// ParseLinkClass returns the class of a name.
func ParseLinkClass(name string) (LinkClass, error) {
	if i := slices.Index(linkNames[:], name); i >= 0 {
		return LinkClass(i), nil
	}
	return UnknownLink, fmt.Errorf("unknown class of links %q, there are: %q", name, linkNames)
}

// DeviceLink is what all ranks know of the way between the devices of two ranks.
type DeviceLink struct {
	Class   LinkClass
	NVLinks int     // parallel links; of the class NVLink only
	Version string  // of NVLink, "4.0"; "" if it is not known
	PCI     float64 // GT/s times lanes of the slower device; 0: not known
}

// Rates in GB/s, expectations that no measurement of ours supports. Those of NVLink are what NCCL expects of one link of Pascal,
// Volta, Ampere, Hopper and Blackwell (src/graph/topo.h, SM60_NVLINK_BW to SM100_NVLINK_BW).
var nvlinkRates = map[string]float64{"1.0": 18, "2.0": 20, "2.2": 20, "3.0": 20, "3.1": 20, "4.0": 20.6, "5.0": 40.1}

const (
	// deviceMemory is the rate of a copy inside the memory of an A100 of 80 GB, whose data sheet has 2039 GB/s: it reads and writes
	// each byte.
	deviceMemory = 2039. / 2
	// throughHostBridge is what a processor passes on between two devices, of the rate of their slots: NCCL expects 6/5 of the
	// traffic on Intel's, which split packets (INTEL_P2P_OVERHEAD).
	throughHostBridge = 5. / 6
	// betweenSockets is what NCCL expects between two sockets of AMD's; of Intel's it expects 6 to 40 (src/graph/topo.h, AMD_BW,
	// BDW_QPI_BW to ERP_QPI_BW).
	betweenSockets = 16.
	// perTransfer is GB/s of payload for a gigatransfer per second: a bit, 128b/130b, and 256 of the 280 bytes of a packet.
	perTransfer = 1. / 8 * 128 / 130 * 256 / 280
)

// cost returns what a message between the two devices costs, without a reduction.
func (l DeviceLink) cost(p Params) cost.Link {
	nvlink, pci := cluster.KnownLink("nvlink"), cluster.KnownLink("pcie")
	if l.PCI > 0 {
		pci.Rate = l.PCI * perTransfer
	}
	switch l.Class {
	case SameDevice:
		nvlink.Rate = deviceMemory
		return nvlink.Cost()
	case NVLink:
		nvlink.Rate = float64(l.NVLinks) * cmp.Or(nvlinkRates[l.Version], nvlinkRates["4.0"])
		return nvlink.Cost()
	case PCISwitch:
		return pci.Cost()
	case HostBridge:
		pci.Rate *= throughHostBridge
		return pci.Cost()
	case Socket:
		pci.Rate = min(pci.Rate*throughHostBridge, betweenSockets)
		return pci.Cost()
	case Network:
		return p.Network
	}
	return p.Channel
}

// DeviceLinks are the links between the devices of a group's ranks.
type DeviceLinks struct {
	Kinds []DeviceLink // in the order of classes, those first that come first among the pairs
	Pairs []int        // by kind: the number of pairs that it joins
	Costs cost.Costs   // what bytes cost that go from device to device; Costs.Links are those of Kinds
}

// LinkDevices returns the links between the devices of the group's ranks, and what messages over them cost. between returns the link
// of the ranks a and b, where a < b, from data that is the same on all ranks.
func (s *Selector) LinkDevices(between func(a, b int) DeviceLink) DeviceLinks {
	return LinkDevices(s.shape.Size, between, s.params)
}

// LinkDevices is Selector.LinkDevices for given parameters.
func LinkDevices(size int, between func(a, b int) DeviceLink, p Params) DeviceLinks {
	var links DeviceLinks
	pairs := map[DeviceLink]int{}
	for a := range size {
		for b := a + 1; b < size; b++ {
			link := between(a, b)
			if pairs[link]++; pairs[link] == 1 {
				links.Kinds = append(links.Kinds, link)
			}
		}
	}
	slices.SortStableFunc(links.Kinds, func(a, b DeviceLink) int { return cmp.Compare(a.Class, b.Class) })
	number := map[DeviceLink]int{}
	links.Costs = cost.Costs{Reduce: 1e-9 / deviceMemory, Copy: 1e-9 / deviceMemory, Capacity: plan.ChannelPlaces}
	for i, kind := range links.Kinds {
		number[kind] = i
		links.Pairs = append(links.Pairs, pairs[kind])
		links.Costs.Links = append(links.Costs.Links, kind.cost(p))
	}
	links.Costs.Class = func(from, to int) int { return number[between(min(from, to), max(from, to))] }
	return links
}
