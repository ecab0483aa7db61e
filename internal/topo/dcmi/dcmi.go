// Package dcmi asks the management library of Huawei's NPU driver, libdcmi.so, which NPUs HCCS joins. The library is opened at run
// time; a host without it is a normal one.
package dcmi

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include "dcmi.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"sagecomm/internal/lazylink"
)

// where lists the names under which the library is opened: the loader's, then the folder that Huawei's documentation mounts into
// containers.
var where = []string{"libdcmi.so", "/usr/local/dcmi/libdcmi.so"}

// load opens and starts the library at its first call. Nobody ends it: it has no function for that.
var load = sync.OnceValue(func() (err error) {
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.dcmi)), int(C.dcmi_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.dcmi_names))
	for _, path := range where {
		if err = lazylink.Open(path, names, table); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if name := lazylink.Lacking(names, table); name != "" {
		return fmt.Errorf("the library has no %s", name)
	}
	if rc := C.call_dcmi_init(); rc != 0 {
		return fmt.Errorf("dcmi_init returned %d", int(rc))
	}
	return nil
})

// chip is an NPU.
type chip struct {
	card, device C.int32_t
	address      string
}

// Pairs returns the PCI addresses of the pairs of NPUs that HCCS joins, directly or through switches. It returns why it cannot tell
// them. Pairs of which the driver tells nothing are left out.
func Pairs() (pairs [][2]string, err error) {
	if err := load(); err != nil {
		return nil, fmt.Errorf("no NPU driver: %w", err)
	}
	chips, err := chips()
	for i, a := range chips {
		for _, b := range chips[i+1:] {
			var kind C.int32_t
			rc := C.call_dcmi_get_topo_info_by_device_id(a.card, a.device, b.card, b.device, &kind)
			if rc == 0 && (kind == C.dcmi_hccs || kind == C.dcmi_hccs_switch) {
				pairs = append(pairs, [2]string{a.address, b.address})
			}
		}
	}
	return pairs, err
}

func chips() (list []chip, err error) {
	var cards [C.dcmi_most_cards]C.int32_t
	var count C.int32_t
	if rc := C.call_dcmi_get_card_list(&count, &cards[0], C.dcmi_most_cards); rc != 0 {
		return nil, fmt.Errorf("dcmi_get_card_list returned %d", int(rc))
	}
	for _, card := range cards[:min(max(int(count), 0), len(cards))] {
		var devices C.int32_t
		if C.call_dcmi_get_device_num_in_card(card, &devices) != 0 {
			continue
		}
		for device := range devices {
			var at C.dcmi_pci
			if C.call_dcmi_get_device_pcie_info_v2(card, device, &at) == 0 {
				list = append(list, chip{card, device, fmt.Sprintf("%04x:%02x:%02x.%x", int32(at.domain), uint32(at.bus), uint32(at.slot), uint32(at.function))})
			}
		}
	}
	return list, nil
}
