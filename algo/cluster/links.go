package cluster

import (
	"slices"
	"strings"
)

// Link is a class of links as one rank sees it.
type Link struct {
	Latency float64 `json:"latency_us"`             // microseconds from the start of a message until its first byte arrives
	Step    float64 `json:"step_us,omitempty"`      // microseconds for which a rank is busy with sending, or taking, a message
	Rate    float64 `json:"gb_per_s"`               // GB per second that one rank sends, and takes at the same time
	NIC     float64 `json:"nic_gb_per_s,omitempty"` // GB per second of a NIC, in each direction; default: as one rank
}

// nic returns the rate of a NIC, which ranks may share.
func (l Link) nic() float64 {
	if l.NIC == 0 {
		return l.Rate
	}
	return l.NIC
}

// check returns an error if no link can have these figures.
func (l Link) check(where string) error {
	switch {
	case !(l.Latency >= 0 && l.Latency <= 1e6):
		return wrong(where+".latency_us", "%g, expected 0 to 1000000", l.Latency)
	case !(l.Step >= 0 && l.Step <= 1e6):
		return wrong(where+".step_us", "%g, expected 0 to 1000000", l.Step)
	}
	if err := positive(where+".nic_gb_per_s", l.nic()); err != nil && l.NIC != 0 {
		return err
	}
	return positive(where+".gb_per_s", l.Rate)
}

// known lists links that need no description: channels in shared memory, and links that this library does not drive
// yet. The figures are expectations; a description that matters gives its own.
//
//   - shared_memory: two processes of a host; algo.DefaultParams, fitted to measurements: a flag is seen after 250 ns, a
//     step takes 300 ns, and a byte that another core has written takes 55 ps.
//   - tcp_25g, tcp_100g: kernel TCP. Of the line 94 % are payload (1448 of 1538 bytes, frames of 1500 bytes, RFC 894
//     and 7323). 15 us one way and 3 us for a system call with its copies are what kernel stacks take without tuning,
//     a loopback connection on a virtual machine 12 to 22 us. One connection copies about 5 GB/s, so that it takes
//     several ranks to fill 100 Gb/s.
//   - rdma_200g, rdma_400g: InfiniBand HDR and NDR, RoCE: 97 % of the line are payload (messages of 4096 bytes with
//     headers of up to 58, and 64b/66b). 4 us is what NCCL expects of a hop over the network, 1.9 us of one over
//     NVLink, 2.5 us of one over PCIe (src/graph/tuning.cc, hwLat: ring, LL128); steps are posting a work request and
//     polling.
//   - nvlink: fourth generation, 18 links of the 20.6 GB/s that NCCL expects of each (src/graph/topo.h,
//     SM90_NVLINK_BW).
//   - pcie: fifth generation, 16 lanes of 32 GT/s with 128b/130b, of which 256 of 280 bytes of a packet are payload.
var known = map[string]Link{
	"shared_memory": {Latency: 0.25, Step: 0.3, Rate: 1 / 0.055},
	"tcp_25g":       {Latency: 15, Step: 3, Rate: 25. / 8 * 0.94},
	"tcp_100g":      {Latency: 15, Step: 3, Rate: 5, NIC: 100. / 8 * 0.94},
	"rdma_200g":     {Latency: 4, Step: 0.3, Rate: 200. / 8 * 0.97},
	"rdma_400g":     {Latency: 4, Step: 0.3, Rate: 400. / 8 * 0.97},
	"nvlink":        {Latency: 1.9, Step: 0.3, Rate: 18 * 20.6},
	"pcie":          {Latency: 2.5, Step: 0.3, Rate: 16 * 32. / 8 * 128 / 130 * 256 / 280},
}

// KnownLinks returns the names of the links that need no description.
func KnownLinks() []string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// KnownLink returns one of the links that need no description.
func KnownLink(name string) Link { return known[name] }

// link finds a link by its name. Descriptions written for earlier versions call shared_memory "ring".
func (c *Cluster) link(where, name string) (Link, error) {
	if l, ok := c.Links[name]; ok {
		return l, nil
	}
	if name == "ring" {
		name = "shared_memory"
	}
	if l, ok := known[name]; ok {
		return l, nil
	}
	names := KnownLinks()
	for name := range c.Links {
		names = append(names, name)
	}
	slices.Sort(names)
	return Link{}, wrong(where, "no link is called %q; there are %s", name, strings.Join(names, ", "))
}
