package topo

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Link says how two accelerators of one maker reach each other. NVIDIA's driver knows more about its GPUs: pairs that [GPUs] has
// are not listed.
type Link struct {
	Kind  string    `json:"kind"`           // "pcie", "hccs" or "mlulink"
	Class string    `json:"class"`          // of links: ClassPCISwitch, ...
	Ends  [2]string `json:"ends"`           // PCI addresses
	Path  string    `json:"path,omitempty"` // through the PCI tree, in the words of nvidia-smi: see pciPaths
}

// Kinds of links.
const (
	kindPCIe    = "pcie"    // through the PCI tree
	kindHCCS    = "hccs"    // of Huawei's NPUs
	kindMLULink = "mlulink" // of Cambricon's MLUs
)

// hostBridge is the name of a root of the PCI tree in the path of a device.
var hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// bridges returns what lies above a PCI function: a host bridge, then the bridges below it, root port first. Each port of a switch
// is a bridge. It returns nil where the directory of devices has no symbolic links, as in a tree that was copied.
func (t tree) bridges(address string) []string {
	path, err := filepath.EvalSymlinks(t.at(pciDevices + "/" + address))
	if err != nil {
		return nil
	}
	parts := strings.Split(filepath.Dir(path), string(filepath.Separator))
	root := slices.IndexFunc(parts, hostBridge.MatchString)
	if root < 0 || slices.ContainsFunc(parts[root+1:], func(part string) bool { return !pciAddress.MatchString(part) }) {
		return nil
	}
	return parts[root:]
}

// PCIPath returns how two functions of one host reach each other through the PCI tree, "" if that is not known. Below a
// switch each of them has a port of its own, so PIX is a path with one further bridge at most on each side.
func PCIPath(a, b PCIDevice) string {
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch {
	case len(a.Bridges) == 0 || len(b.Bridges) == 0:
		return ""
	case shared == 0 && a.Node == b.Node && !a.Node.IsZero():
		return "NODE"
	case shared == 0:
		return "SYS"
	case shared == 1:
		return "PHB"
	case len(a.Bridges)-shared <= 1 && len(b.Bridges)-shared <= 1:
		return "PIX"
	}
	return "PXB"
}

// linksOf returns a link for each pair of accelerators of one maker.
func linksOf(devices []PCIDevice) (links []Link) {
	for i, a := range devices {
		for _, b := range devices[i+1:] {
			if path := PCIPath(a, b); a.Vendor == b.Vendor && a.VendorName != "" && path != "" {
				links = append(links, Link{kindPCIe, classOf(path), [2]string{a.Address, b.Address}, path})
			}
		}
	}
	return links
}

// withoutGPUs removes the pairs of which NVIDIA's driver knows more.
func withoutGPUs(links []Link, gpus GPUs) []Link {
	known := func(address string) bool {
		return slices.ContainsFunc(gpus.List, func(g GPU) bool { return g.Address == address })
	}
	return slices.DeleteFunc(links, func(l Link) bool { return known(l.Ends[0]) && known(l.Ends[1]) })
}

// PCI ids of makers whose drivers know of links that sysfs does not show.
const (
	huawei    = "0x19e5"
	cambricon = "0xcabc"
)

// mark changes the kind and the class of the links of a maker's devices that its own kind of links joins. pairs returns the PCI
// addresses of these devices, or why they are not known. mark returns that reason, "" on a host without such devices.
func (t *Topology) mark(maker, kind, class string, pairs func() ([][2]string, error)) (unknown string) {
	if !slices.ContainsFunc(t.Accelerators, func(d PCIDevice) bool { return d.Vendor == maker }) {
		return ""
	}
	found, err := pairs()
	if err != nil {
		unknown = err.Error()
	}
	for _, pair := range found {
		for i, l := range t.Links {
			if l.Ends == pair || l.Ends == [2]string{pair[1], pair[0]} {
				t.Links[i].Kind, t.Links[i].Class = kind, class
			}
		}
	}
	return unknown
}

// deviceFile is the name of the file through which a process uses an accelerator: of Huawei's Ascend (docs of MindCluster,
// "ascend-docker-runtime"), Cambricon (cambricon-k8s-device-plugin, pkg/mlu/const.go) and NVIDIA. A container has the files of those
// accelerators that it was given, while its sysfs shows all of the host.
var deviceFile = regexp.MustCompile(`^(davinci|cambricon_dev|nvidia)[0-9]+$`)

func (t tree) deviceFiles() []string {
	return slices.DeleteFunc(t.names("dev"), func(name string) bool { return !deviceFile.MatchString(name) })
}
