package ascend

// #include "acl.h"
import "C"

import "errors"

// Locate returns the device on which memory is. Memory that AscendCL does not know, and pinned memory of the host, is on none.
func Locate(pointer uintptr) (index int, found bool, err error) {
	if err := load(); err != nil {
		return 0, false, nil // no memory is the runtime's
	}
	if C.acl.aclrtPointerGetAttributes == nil {
		return 0, false, errors.New("the Ascend runtime has no aclrtPointerGetAttributes: it is too old")
	}
	var at C.acl_location
	if err := failed("aclrtPointerGetAttributes", C.call_aclrtPointerGetAttributes(C.uintptr_t(pointer), &at)); err != nil {
		return 0, false, err
	}
	return int(at.device), at.kind == C.acl_location_device || at.kind == C.acl_location_managed, nil
}
