package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Visible holds the GPUs that CUDA_VISIBLE_DEVICES leaves to CUDA in this process. NVML itself does not look at the variable.
type Visible struct {
	Setting string       `json:"setting"`       // value of the variable
	Devices []VisibleGPU `json:"devices"`       // in the order of CUDA's device numbers
	Why     string       `json:"why,omitempty"` // why CUDA does not see all that is listed in the setting
}

// VisibleGPU is a GPU, or an instance (MIG) of one.
type VisibleGPU struct {
	GPU      int    `json:"gpu"`                // GPU.Index; of an instance it may be one that GPUs.List lacks, because NVML refuses that GPU
	Instance string `json:"instance,omitempty"` // UUID of the instance
}

// visibleOf returns what the variable leaves of GPUs, nil if it is not set. parent returns the GPU of an instance.
//
// The rules are those of the CUDA programming guide (section "CUDA environment variables"): the list ends before the first entry
// that is no GPU. An entry is a number, a UUID or the unique beginning of one. CUDA sees nothing if a GPU is listed twice, as
// torch.cuda knows too (_parse_visible_devices). Numbers count GPUs as CUDA_DEVICE_ORDER says; its default, FASTEST_FIRST, leaves
// the order open among GPUs that differ.
func visibleOf(gpus []GPU, environ []string, parent func(uuid string) (int, bool)) *Visible {
	setting, ok := variable(environ, "CUDA_VISIBLE_DEVICES")
	if !ok {
		return nil
	}
	v := &Visible{Setting: setting, Devices: []VisibleGPU{}}
	ordered := inOrder(gpus, environ)
	for entry := range strings.SplitSeq(setting, ",") {
		entry = strings.TrimSpace(entry)
		d, why := visibleEntry(gpus, entry, ordered, parent)
		switch {
		case entry == "" && len(v.Devices) == 0:
			return v // an empty variable hides all GPUs
		case why != "":
			v.Why = why
			return v
		case slices.Contains(v.Devices, d):
			v.Devices, v.Why = []VisibleGPU{}, fmt.Sprintf("%q is listed twice", entry)
			return v
		}
		v.Devices = append(v.Devices, d)
	}
	return v
}

// inOrder reports whether CUDA numbers GPUs in their order here, which is that of their PCI addresses.
func inOrder(gpus []GPU, environ []string) bool {
	order, _ := variable(environ, "CUDA_DEVICE_ORDER")
	return order == "PCI_BUS_ID" || !slices.ContainsFunc(gpus, func(g GPU) bool { return g.Name != gpus[0].Name })
}

func visibleEntry(gpus []GPU, entry string, ordered bool, parent func(uuid string) (int, bool)) (d VisibleGPU, why string) {
	if number, err := strconv.Atoi(entry); err == nil {
		switch {
		case number < 0 || number >= len(gpus):
			return d, fmt.Sprintf("there is no GPU %d", number)
		case !ordered:
			return d, "the GPUs differ, and only CUDA_DEVICE_ORDER=PCI_BUS_ID numbers those as here"
		}
		return VisibleGPU{GPU: gpus[number].Index}, ""
	}
	uuid := entry
	if legacy, ok := strings.CutPrefix(entry, "MIG-GPU-"); ok { // MIG-GPU-<UUID of the GPU>/<instance>/<compute instance>
		whole, _, _ := strings.Cut(legacy, "/")
		uuid = "GPU-" + whole
	} else if strings.HasPrefix(entry, "MIG-") {
		if gpu, ok := parent(entry); ok {
			return VisibleGPU{gpu, entry}, ""
		}
		return d, fmt.Sprintf("there is no instance %s", entry)
	}
	of := slices.DeleteFunc(slices.Clone(gpus), func(g GPU) bool { return !strings.HasPrefix(g.UUID, uuid) })
	switch {
	case !strings.HasPrefix(uuid, "GPU-") || len(of) == 0:
		return d, fmt.Sprintf("there is no GPU %q", entry)
	case len(of) > 1:
		return d, fmt.Sprintf("%s is the beginning of several UUIDs", entry)
	case uuid != entry:
		return VisibleGPU{of[0].Index, entry}, ""
	}
	return VisibleGPU{GPU: of[0].Index}, ""
}

// variable returns the value of a variable of an environment.
func variable(environ []string, name string) (string, bool) {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}
