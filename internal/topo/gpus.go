package topo

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"sagecomm/internal/lazylink"
)

// GPUs are the NVIDIA GPUs of a host with the connections between them. Only the driver knows these; it reports them through its
// management library, NVML.
type GPUs struct {
	List  []GPU     `json:"list,omitempty"`
	Links []GPULink `json:"links,omitempty"` // of each pair, in order
	Why   string    `json:"why,omitempty"`   // the reason why the list is empty
	// Visible is what CUDA_VISIBLE_DEVICES leaves to CUDA; nil if the variable is not set, or there are no GPUs.
	Visible *Visible `json:"visible,omitempty"`
	// Unordered tells that CUDA may number the GPUs in another order than List: they differ, and CUDA_DEVICE_ORDER is not PCI_BUS_ID.
	Unordered bool `json:"unordered,omitempty"`
}

// GPU is one GPU. What the driver does not tell is left out.
type GPU struct {
	Index       int    `json:"index"` // NVML's: GPUs are in the order of their PCI addresses, whatever a process may use of them
	Name        string `json:"name,omitempty"`
	UUID        string `json:"uuid,omitempty"`
	Address     string `json:"address,omitempty"` // domain:bus:device.function, as in PCIDevice
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	Capability  string `json:"compute_capability,omitempty"` // "9.0"
	Node        ID     `json:"node,omitzero"`
	CPUs        CPUSet `json:"cpus,omitempty"`           // cpus that are near to it
	NVLinks     int    `json:"nvlinks,omitempty"`        // links that are up, to GPUs and switches
	NVLink      string `json:"nvlink_version,omitempty"` // version of NVLink, "4.0"
}

// GPULink says how two GPUs reach each other.
type GPULink struct {
	A       int    `json:"a"` // indices
	B       int    `json:"b"`
	Class   string `json:"class"`             // of links: ClassNVLink, ...
	Path    string `json:"path,omitempty"`    // through the PCI tree, in the words of nvidia-smi: see pciPaths
	NVLinks int    `json:"nvlinks,omitempty"` // between the two, or from each of them to a switch
	P2P     bool   `json:"p2p,omitempty"`     // each reads the memory of the other
}

// pciPaths holds the names that `nvidia-smi topo -m` gives to the closest common ancestor of two devices.
var pciPaths = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL:   "internal", // on one card
	nvml.TOPOLOGY_SINGLE:     "PIX",      // one PCI bridge
	nvml.TOPOLOGY_MULTIPLE:   "PXB",      // several PCI bridges
	nvml.TOPOLOGY_HOSTBRIDGE: "PHB",      // a PCI host bridge
	nvml.TOPOLOGY_NODE:       "NODE",     // host bridges of one NUMA node
	nvml.TOPOLOGY_SYSTEM:     "SYS",      // NUMA nodes
}

// nvmlLibrary is where the driver has NVML.
const nvmlLibrary = "libnvidia-ml.so.1"

// nvlinkVersions holds the versions that the numbers of nvml.NvlinkVersion mean.
var nvlinkVersions = []string{"", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0"}

// ReadGPUs returns the GPUs of this host. environ is the environment of this process. ReadGPUs starts NVML and ends it again,
// which takes some milliseconds on a host with GPUs.
func ReadGPUs(environ []string) GPUs {
	if err := lazylink.BindNVML(nvmlLibrary); err != nil {
		return GPUs{Why: "no NVIDIA driver: " + err.Error()}
	}
	library := nvml.New(nvml.WithLibraryPath(nvmlLibrary))
	if rc := library.Init(); rc != nvml.SUCCESS {
		return GPUs{Why: "NVML does not start: " + rc.Error()}
	}
	defer func() { _ = library.Shutdown() }()
	return gpusOf(library, environ)
}

func gpusOf(library nvml.Interface, environ []string) (found GPUs) {
	count, rc := library.DeviceGetCount()
	if rc != nvml.SUCCESS {
		return GPUs{Why: "NVML does not count the GPUs: " + rc.Error()}
	}
	var devices []nvml.Device
	var links []remotes
	for i := range count {
		device, rc := library.DeviceGetHandleByIndex(i)
		if rc != nvml.SUCCESS { // it is out of order, or of another user
			continue
		}
		to := nvlinksOf(device)
		devices, links = append(devices, device), append(links, to)
		found.List = append(found.List, gpuOf(device, i, to))
	}
	if len(found.List) > 0 {
		found.Unordered = !inOrder(found.List, environ)
		found.Visible = visibleOf(found.List, environ, func(uuid string) (int, bool) { return parentOf(library, uuid) })
	} else {
		found.Why = fmt.Sprintf("the driver has %d GPUs, and none that this process may use", count)
	}
	for a := range devices {
		for b := a + 1; b < len(devices); b++ {
			link := GPULink{A: found.List[a].Index, B: found.List[b].Index, NVLinks: links[a].with(found.List[a], found.List[b], links[b])}
			if level, rc := devices[a].GetTopologyCommonAncestor(devices[b]); rc == nvml.SUCCESS {
				link.Path = pciPaths[level]
			}
			if link.Class = classOf(link.Path); link.NVLinks > 0 {
				link.Class = ClassNVLink
			}
			link.P2P = reads(devices[a], devices[b]) && reads(devices[b], devices[a])
			found.Links = append(found.Links, link)
		}
	}
	return found
}

// parentOf returns the index of the GPU of an instance.
func parentOf(library nvml.Interface, uuid string) (int, bool) {
	instance, rc := library.DeviceGetHandleByUUID(uuid)
	if rc != nvml.SUCCESS {
		return 0, false
	}
	device, rc := instance.GetDeviceHandleFromMigDeviceHandle()
	if rc != nvml.SUCCESS {
		return 0, false
	}
	index, rc := device.GetIndex()
	return index, rc == nvml.SUCCESS
}

func gpuOf(device nvml.Device, index int, to remotes) GPU {
	g := GPU{Index: index, Node: unknown, NVLinks: to.switches, NVLink: to.version}
	for _, n := range to.gpus {
		g.NVLinks += n
	}
	if name, rc := device.GetName(); rc == nvml.SUCCESS {
		g.Name = name
	}
	if uuid, rc := device.GetUUID(); rc == nvml.SUCCESS {
		g.UUID = uuid
	}
	if pci, rc := device.GetPciInfo(); rc == nvml.SUCCESS {
		g.Address = addressOf(pci)
	}
	if memory, rc := device.GetMemoryInfo(); rc == nvml.SUCCESS {
		g.MemoryBytes = memory.Total
	}
	if major, minor, rc := device.GetCudaComputeCapability(); rc == nvml.SUCCESS {
		g.Capability = fmt.Sprintf("%d.%d", major, minor)
	}
	if node, rc := device.GetNumaNodeId(); rc == nvml.SUCCESS {
		g.Node = ID(node)
	}
	const words = (maxCPU + 1) / 64 / 8 // of 64 bits, for as many cpus as Linux has
	if mask, rc := device.GetCpuAffinity(words); rc == nvml.SUCCESS {
		for i, word := range mask {
			for bit := range 64 {
				if word>>bit&1 != 0 {
					g.CPUs = append(g.CPUs, 64*i+bit)
				}
			}
		}
	}
	return g
}

// addressOf returns the address as sysfs writes it, "" if it is not known. NVML's domain has eight digits.
func addressOf(pci nvml.PciInfo) string {
	text, _, _ := strings.Cut(string(pci.BusId[:]), "\x00")
	address := strings.ToLower(text)
	if domain, _, _ := strings.Cut(address, ":"); len(domain) == 8 {
		address = strings.TrimPrefix(address, "0000")
	}
	return address
}

// remotes are the other ends of the NVLinks of a GPU.
type remotes struct {
	version  string
	switches int
	gpus     map[string]int // links to each, by PCI address
}

func nvlinksOf(device nvml.Device) remotes {
	to := remotes{gpus: map[string]int{}}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, rc := device.GetNvLinkState(link); rc != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		if version, rc := device.GetNvLinkVersion(link); rc == nvml.SUCCESS && int(version) < len(nvlinkVersions) {
			to.version = nvlinkVersions[version]
		}
		kind, rc := device.GetNvLinkRemoteDeviceType(link)
		switch {
		case rc == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
			to.switches++
		case rc == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_GPU:
			pci, rc := device.GetNvLinkRemotePciInfo(link)
			if address := addressOf(pci); rc == nvml.SUCCESS && address != "" {
				to.gpus[address]++
			}
		}
	}
	return to
}

// with returns the number of links between two GPUs. All switches of a host are one fabric.
func (r remotes) with(a, b GPU, other remotes) int {
	if links := max(r.gpus[b.Address], other.gpus[a.Address]); links > 0 {
		return links
	}
	return min(r.switches, other.switches)
}

func reads(a, b nvml.Device) bool {
	status, rc := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_READ)
	return rc == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
}

// FullyConnected reports whether NVLink joins each pair of at least two GPUs.
func (g GPUs) FullyConnected() bool {
	for _, link := range g.Links {
		if link.NVLinks == 0 {
			return false
		}
	}
	return len(g.Links) > 0
}
