package topo

import (
	"cmp"
	"slices"
)

// Classes of links between devices. Package algo has the costs of each.
const (
	ClassSameDevice = "same device" // or instances of one
	ClassNVLink     = "NVLink"      // directly or through switches
	ClassHCCS       = "HCCS"        // likewise, between NPUs; ranks tell each other of GPUs only
	ClassMLULink    = "MLU-Link"    // likewise, directly between MLUs
	ClassPCISwitch  = "PCI switch"
	ClassHostBridge = "host bridge" // also several of one NUMA node
	ClassSocket     = "socket"      // NUMA nodes
	ClassUnknown    = "not known"
)

// classOf returns the class of a path through the PCI tree (pciPaths).
func classOf(path string) string {
	switch path {
	case "internal", "PIX", "PXB":
		return ClassPCISwitch
	case "PHB", "NODE":
		return ClassHostBridge
	case "SYS":
		return ClassSocket
	}
	return ClassUnknown
}

// Place is where a device is, as ranks tell each other: how it reaches the other devices of its host.
type Place struct {
	Address string         `json:"address"`        // PCI address
	Ways    map[string]Way `json:"ways,omitempty"` // by the address of the other device
}

// Way is how two devices reach each other.
type Way struct {
	Class   string  `json:"class"`
	NVLinks int     `json:"nvlinks,omitempty"`        // parallel links
	Version string  `json:"nvlink_version,omitempty"` // of NVLink
	PCI     float64 `json:"pci_gt_per_s,omitempty"`   // PCIDevice.PCI of the slower device
}

// To returns the way to another device of the same host. Both may know it, and then p counts.
func (p Place) To(q Place) Way {
	if p.Address == q.Address {
		return Way{Class: ClassSameDevice}
	}
	if way, ok := p.Ways[q.Address]; ok {
		return way
	}
	if way, ok := q.Ways[p.Address]; ok {
		return way
	}
	return Way{Class: ClassUnknown}
}

// Places returns the GPUs that CUDA numbers in this process, by its numbers. It returns nil where the driver does not tell them all, or
// nobody knows how CUDA numbers them.
func (t Topology) Places() (places []Place) {
	list := t.GPUs.List
	if v := t.GPUs.Visible; v != nil {
		list = nil
		for _, d := range v.Devices {
			i := slices.IndexFunc(t.GPUs.List, func(g GPU) bool { return g.Index == d.GPU })
			if i < 0 {
				return nil
			}
			list = append(list, t.GPUs.List[i])
		}
	} else if t.GPUs.Unordered {
		return nil
	}
	for _, g := range list {
		if g.Address == "" {
			return nil
		}
		places = append(places, Place{g.Address, t.ways(g)})
	}
	return places
}

// ways returns how a GPU reaches the others.
func (t Topology) ways(g GPU) map[string]Way {
	ways := map[string]Way{}
	for _, link := range t.GPUs.Links {
		other := link.A
		if other == g.Index {
			other = link.B
		} else if link.B != g.Index {
			continue
		}
		i := slices.IndexFunc(t.GPUs.List, func(o GPU) bool { return o.Index == other })
		if o := t.GPUs.List[i]; o.Address != "" {
			way := Way{Class: link.Class, NVLinks: link.NVLinks, PCI: min(t.pci(g.Address), t.pci(o.Address))}
			if link.NVLinks > 0 {
				way.Version = cmp.Or(g.NVLink, o.NVLink)
			}
			ways[o.Address] = way
		}
	}
	return ways
}

// pci returns PCIDevice.PCI of a device, 0 if it is not known.
func (t Topology) pci(address string) float64 {
	for _, d := range t.Accelerators {
		if d.Address == address {
			return d.PCI
		}
	}
	return 0
}
