// Package topo says what a host is made of, as far as its kernel tells: processors with their cores and caches, NUMA
// nodes, accelerators, network interfaces, and what of it this process may use. It reads sysfs and procfs below a root
// directory, so a recorded tree of another machine reads as well (testdata, and fixture_test.go for the format).
//
// It asks no vendor library. Links between GPUs (NVLink) are known to NVML only and are not here. The interfaces are
// those of the network namespace that /sys was mounted in.
//
// What a tree does not have, or has in a form that the kernel does not write, is left out. There are no errors:
// somebody who wants to know about a broken or foreign machine gets what can be known. Start with [Read].
package topo

// Topology is one host.
type Topology struct {
	Host         Host        `json:"host"`
	Process      Process     `json:"process"`
	CPUModel     string      `json:"cpu_model,omitempty"` // of the first cpu
	MemoryBytes  int64       `json:"memory_bytes,omitempty"`
	Online       CPUSet      `json:"online,omitempty"`
	Offline      CPUSet      `json:"offline,omitempty"`
	Packages     []Package   `json:"packages,omitempty"`
	Caches       []Cache     `json:"caches,omitempty"`
	Nodes        []Node      `json:"nodes,omitempty"`
	Accelerators []PCIDevice `json:"accelerators,omitempty"`
	RDMA         []RDMA      `json:"rdma,omitempty"`
	Interfaces   []Interface `json:"interfaces,omitempty"`
}

// Host is what tells this host from others: two containers of one machine have one boot id.
type Host struct {
	Name   string `json:"name,omitempty"`
	BootID string `json:"boot_id,omitempty"`
}

// Process is what this process may use, by its main thread's affinity mask, cpusets included, and by its cgroups.
type Process struct {
	CPUs     CPUSet  `json:"cpus,omitempty"`
	Nodes    CPUSet  `json:"memory_nodes,omitempty"` // of whose memory
	CPUQuota float64 `json:"cpu_quota,omitempty"`    // cpus' worth of time; 0: no limit is known
}

// ID is a number that the kernel gives to a package or node. Below 0 it is not known.
type ID int

const unknown ID = -1

// IsZero leaves an unknown number out of JSON.
func (id ID) IsZero() bool { return id < 0 }

// Package is a processor in its socket. Packages and their cores partition the cpus that are online.
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
	CPUs  CPUSet `json:"cpus"` // that share it
}

// Node is a part of the memory with the cpus that are near to it; there may be none.
type Node struct {
	ID          ID     `json:"id"`
	CPUs        CPUSet `json:"cpus,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	Distances   []int  `json:"distances,omitempty"` // to Topology.Nodes in their order; 10 is to itself
}

// PCIDevice is a display controller or an accelerator.
type PCIDevice struct {
	Address    string `json:"address"` // domain:bus:device.function
	Kind       string `json:"kind"`    // what its class is called
	Vendor     string `json:"vendor"`  // PCI ids, "0x10de"
	Device     string `json:"device,omitempty"`
	VendorName string `json:"vendor_name,omitempty"`
	Driver     string `json:"driver,omitempty"` // that the kernel has bound to it
	Node       ID     `json:"node,omitzero"`
	CPUs       CPUSet `json:"cpus,omitempty"` // that are near to it
}

// RDMA is an InfiniBand or RoCE adapter.
type RDMA struct {
	Name       string   `json:"name"`
	Address    string   `json:"address,omitempty"` // on PCI
	Node       ID       `json:"node,omitzero"`
	Interfaces []string `json:"interfaces,omitempty"` // of the same PCI function
	Ports      []Port   `json:"ports,omitempty"`
}

// Port is one of an adapter.
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
	Address  string `json:"address,omitempty"` // of its device on PCI
	Node     ID     `json:"node,omitzero"`
}

// Read reads the host whose /sys and /proc lie below root: "/" is this one.
func Read(root string) Topology { return read(tree{root: root}) }

func read(t tree) Topology {
	online := t.cpus("sys/devices/system/cpu/online")
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
		Accelerators: t.accelerators(),
		RDMA:         t.rdma(),
		Interfaces:   t.interfaces(),
	}
}
