// Package cndev asks the management library of Cambricon's driver, libcndev.so, which MLUs MLU-Link joins. The library is opened at
// run time; a host without it is a normal one.
package cndev

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include "cndev.h"
import "C"

import (
	"bytes"
	"fmt"
	"sync"
	"unsafe"

	"sagecomm/internal/lazylink"
)

const library = "libcndev.so"

// load opens and starts the library at its first call. Nobody ends it: others of this process may use it.
var load = sync.OnceValue(func() error {
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.cndev)), int(C.cndev_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.cndev_names))
	if err := lazylink.Open(library, names, table); err != nil {
		return err
	}
	if name := lazylink.Lacking(names, table[:len(table)-1]); name != "" { // without the last one, a device is its index
		return fmt.Errorf("the library has no %s", name)
	}
	if rc := C.call_cndevInit(0); rc != 0 {
		return fmt.Errorf("cndevInit returned %d", int(rc))
	}
	return nil
})

// mlu is a device.
type mlu struct {
	device        C.int32_t
	uuid, address string
}

// Pairs returns the PCI addresses of the pairs of MLUs that MLU-Link joins. It returns why it cannot tell them. Devices and links of which
// the driver tells nothing are left out.
func Pairs() (pairs [][2]string, err error) {
	if err := load(); err != nil {
		return nil, fmt.Errorf("no MLU driver: %w", err)
	}
	list, err := mlus()
	for i, a := range list {
		ends := a.ends()
		for _, b := range list[i+1:] {
			if ends[b.uuid] || b.ends()[a.uuid] {
				pairs = append(pairs, [2]string{a.address, b.address})
			}
		}
	}
	return pairs, err
}

func mlus() (list []mlu, err error) {
	count := C.cndev_count{version: C.cndev_version}
	if rc := C.call_cndevGetDeviceCount(&count); rc != 0 {
		return nil, fmt.Errorf("cndevGetDeviceCount returned %d", int(rc))
	}
	for index := range C.int32_t(min(count.devices, 1<<10)) {
		m := mlu{device: index}
		uuid, at := C.cndev_uuid{version: C.cndev_version}, C.cndev_pci{version: C.cndev_version}
		if C.cndev.cndevGetDeviceHandleByIndex != nil && C.call_cndevGetDeviceHandleByIndex(index, &m.device) != 0 {
			continue
		}
		if C.call_cndevGetUUID(&uuid, m.device) == 0 && C.call_cndevGetPCIeInfo(&at, m.device) == 0 {
			m.uuid = text(&uuid.uuid)
			m.address = fmt.Sprintf("%04x:%02x:%02x.%x", uint32(at.domain), uint32(at.bus), uint32(at.slot), uint32(at.function))
			list = append(list, m)
		}
	}
	return list, nil
}

// ends returns the UUIDs of the devices at the other ends of the links that are up.
func (m mlu) ends() map[string]bool {
	uuids := map[string]bool{}
	for link := range min(C.call_cndevGetMLULinkPortNumber(m.device), C.cndev_most_links) {
		status, remote := C.cndev_link{version: C.cndev_version}, C.cndev_remote{version: C.cndev_version}
		if C.call_cndevGetMLULinkStatus(&status, m.device, link) == 0 && status.active == C.cndev_link_up &&
			C.call_cndevGetMLULinkRemoteInfo(&remote, m.device, link) == 0 {
			uuids[text(&remote.uuid)] = true
		}
	}
	delete(uuids, "")
	return uuids
}

// text returns a UUID, which ends with a zero or with the array.
func text(uuid *[C.cndev_uuid_bytes]C.uint8_t) string {
	all := C.GoBytes(unsafe.Pointer(uuid), C.cndev_uuid_bytes)
	before, _, _ := bytes.Cut(all, []byte{0})
	return string(before)
}
