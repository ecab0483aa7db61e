// Package topo describes the hardware of a host as its kernel reports it: processors with their cores and caches, NUMA
// nodes, accelerators with the paths between them, and network interfaces, and the part of them that this process may use. It reads
// sysfs, procfs and the names of device files below a root directory, so it can also read a recorded tree of another machine (testdata; fixture_test.go has the format).
// Of the GPUs of this host, and the NVLinks between them, it asks NVIDIA's driver ([ReadGPUs]). The interfaces are those of the
// network namespace in which /sys was mounted.
//
// The result leaves out data that is missing in a tree or has a form that the kernel does not write. There are no errors:
// a user of a broken or unusual machine gets the data that can be read. Any goroutine may call the package. Start reading
// at [Read].
package topo

import (
	"sagecomm/internal/topo/cndev"
	"sagecomm/internal/topo/dcmi"
)

// Topology is one host.
type Topology struct {
	Host         Host        `json:"host"`
	Process      Process     `json:"process"`
	CPUModel     string      `json:"cpu_model,omitempty"` // model of the first cpu
	MemoryBytes  int64       `json:"memory_bytes,omitempty"`
	Online       CPUSet      `json:"online,omitempty"`
	Offline      CPUSet      `json:"offline,omitempty"`
	Packages     []Package   `json:"packages,omitempty"`
	Caches       []Cache     `json:"caches,omitempty"`
	Nodes        []Node      `json:"nodes,omitempty"`
	Accelerators []PCIDevice `json:"accelerators,omitempty"`
	RDMA         []RDMA      `json:"rdma,omitempty"`
	Interfaces   []Interface `json:"interfaces,omitempty"`
	Links        []Link      `json:"links,omitempty"` // of accelerators
	// NoHCCS is why it is not known which NPUs HCCS joins. ReadHost alone sets it, on hosts with NPUs.
	NoHCCS string `json:"no_hccs,omitempty"`
	// NoMLULink is the same for MLUs and MLU-Link.
	NoMLULink string `json:"no_mlulink,omitempty"`
	GPUs      GPUs   `json:"gpus,omitzero"` // ReadHost alone fills it
}

// Host identifies a host. Two containers on one machine have the same boot id.
type Host struct {
	Name   string `json:"name,omitempty"`
	BootID string `json:"boot_id,omitempty"`
}

// Process describes the part of the host that this process may use, according to its main thread's affinity mask, which
// includes cpusets, and to its cgroups.
type Process struct {
	CPUs     CPUSet   `json:"cpus,omitempty"`
	Nodes    CPUSet   `json:"memory_nodes,omitempty"` // nodes whose memory it may use
	CPUQuota float64  `json:"cpu_quota,omitempty"`    // processor time in cpus; 0: no known limit
	Files    []string `json:"device_files,omitempty"` // of accelerators, in /dev
}

// ID is the kernel's number of a package or node. An ID below 0 is unknown.
type ID int

const unknown ID = -1

// IsZero reports whether the ID is unknown: JSON leaves it out then.
func (id ID) IsZero() bool { return id < 0 }

// Package is one processor, in one socket. The packages, and likewise their cores, partition the cpus that are online.
type Package struct {
	ID    ID     `json:"id,omitzero"`
	CPUs  CPUSet `json:"cpus"`
	Cores []Core `json:"cores"`
}

// Core has one cpu for each of its threads.
type Core struct {
	ID   ID     `json:"id,omitzero"` // not unique within a package of several dies
	CPUs CPUSet `json:"cpus"`
}

// Cache holds data of level 2 or above.
type Cache struct {
	Level int    `json:"level"`
	Bytes int64  `json:"bytes,omitempty"`
	CPUs  CPUSet `json:"cpus"` // cpus that share it
}

// Node is a NUMA node: a part of the memory and the cpus that are near to it. It may have no cpus.
type Node struct {
	ID          ID     `json:"id"`
	CPUs        CPUSet `json:"cpus,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	Distances   []int  `json:"distances,omitempty"` // to each of Topology.Nodes, in their order; the distance to itself is 10
}

// PCIDevice is a display controller or an accelerator.
type PCIDevice struct {
	Address    string   `json:"address"` // domain:bus:device.function
	Kind       string   `json:"kind"`    // name of its class
	Vendor     string   `json:"vendor"`  // PCI ids, "0x10de"
	Device     string   `json:"device,omitempty"`
	VendorName string   `json:"vendor_name,omitempty"`
	Driver     string   `json:"driver,omitempty"` // kernel driver that is bound to it
	Node       ID       `json:"node,omitzero"`
	CPUs       CPUSet   `json:"cpus,omitempty"`         // cpus that are near to it
	PCI        float64  `json:"pci_gt_per_s,omitempty"` // GT/s of a lane times lanes, the most that the device can do
	Bridges    []string `json:"bridges,omitempty"`      // above it in the PCI tree, the host bridge first
}

// RDMA is an InfiniBand or RoCE adapter.
type RDMA struct {
	Name       string   `json:"name"`
	Address    string   `json:"address,omitempty"` // PCI address
	Node       ID       `json:"node,omitzero"`
	Interfaces []string `json:"interfaces,omitempty"` // network interfaces of the same PCI function
	Ports      []Port   `json:"ports,omitempty"`
}

// Port is one port of an RDMA adapter.
type Port struct {
	Number int     `json:"number"`
	State  string  `json:"state,omitempty"` // ACTIVE, DOWN, ...
	Link   string  `json:"link,omitempty"`  // InfiniBand; Ethernet: RoCE
	Gbps   float64 `json:"gbps,omitempty"`
}

// Interface is a network interface.
type Interface struct {
	Name     string `json:"name"`
	Up       bool   `json:"up"` // set up, and connected as far as the driver knows
	Loopback bool   `json:"loopback,omitempty"`
	Mbps     int64  `json:"mbps,omitempty"`
	MTU      int64  `json:"mtu,omitempty"`
	Address  string `json:"address,omitempty"` // PCI address of its device
	Node     ID     `json:"node,omitzero"`
}

// ReadHost returns the topology of this host, with its GPUs, and the links of NPUs and MLUs that only their drivers know. environ is the environment of this process.
func ReadHost(environ []string) Topology {
	t := Read("/")
	t.GPUs = ReadGPUs(environ)
	t.Links = withoutGPUs(t.Links, t.GPUs)
	t.NoHCCS = t.mark(huawei, kindHCCS, ClassHCCS, dcmi.Pairs)
	t.NoMLULink = t.mark(cambricon, kindMLULink, ClassMLULink, cndev.Pairs)
	return t
}

// Read returns the topology of the host whose /sys and /proc lie below root. The root "/" stands for this host.
func Read(root string) Topology { return read(tree{root: root}) }

func read(t tree) Topology {
	online := t.cpus("sys/devices/system/cpu/online")
	accelerators := t.accelerators()
	return Topology{
		Host: Host{
			Name:   t.text("proc/sys/kernel/hostname"),
			BootID: t.text("proc/sys/kernel/random/boot_id"),
		},
		Process:      t.process(),
		CPUModel:     t.field("proc/cpuinfo", "model name"),
		MemoryBytes:  kibibytes(t.field("proc/meminfo", "MemTotal")),
		Online:       online,
		Offline:      t.cpus("sys/devices/system/cpu/offline"),
		Packages:     t.packages(online),
		Caches:       t.caches(online),
		Nodes:        t.nodes(),
		Accelerators: accelerators,
		Links:        linksOf(accelerators),
		RDMA:         t.rdma(),
		Interfaces:   t.interfaces(),
	}
}
