package ascend

// #include "acl.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"

	"sagecomm/internal/device"
)

// Identity implements device.Launcher. ASCEND_RT_VISIBLE_DEVICES gives a device another number in each process, but not another
// physical one.
func (d *Driver) Identity() (string, error) {
	if C.acl.aclrtGetPhyDevIdByLogicDevId == nil || C.acl.aclrtMalloc == nil || C.acl.aclrtFree == nil {
		return "", errors.New("the Ascend runtime has no aclrtGetPhyDevIdByLogicDevId, or no aclrtMalloc, or no aclrtFree: it is too old for HCCL")
	}
	var physical C.int32_t
	err := d.do("cannot ask for the physical number of the device", func() error {
		return failed("aclrtGetPhyDevIdByLogicDevId", C.call_aclrtGetPhyDevIdByLogicDevId(C.int32_t(d.index), &physical))
	})
	if err != nil {
		return "", err
	}
	return device.OfMachine(fmt.Sprintf("npu %d", physical))
}

// Vendor implements device.Launcher.
func (d *Driver) Vendor() string { return "npu" }

// Handle implements device.Launcher.
func (d *Driver) Handle(s device.Stream) (uintptr, error) { return s.Handle, nil }

// Current implements device.Launcher.
func (d *Driver) Current(f func() error) error {
	return device.Within(d.do, f)
}

type memory struct {
	d  *Driver
	at C.uintptr_t
}

func (m memory) Address() uintptr { return uintptr(m.at) }

// Release implements device.Memory. Memory that the runtime does not take back stays allocated.
func (m memory) Release() {
	_ = m.d.do("", func() error { return failed("aclrtFree", C.call_aclrtFree(m.at)) })
}

// Allocate implements device.Launcher.
func (d *Driver) Allocate(bytes uint64, _ bool) (device.Memory, error) {
	m := memory{d: &Driver{index: d.index, context: d.context}}
	err := d.do("cannot allocate memory of the device", func() error {
		return failed("aclrtMalloc", C.call_aclrtMalloc(&m.at, C.size_t(bytes), C.acl_mem_malloc_huge_first))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// CopyWithin implements device.Launcher.
func (d *Driver) CopyWithin(s device.Stream, to, from uintptr, bytes uint64) error {
	return d.do("cannot queue a copy within the device", func() error { return CopyWithin(s.Handle, to, from, bytes) })
}

// CopyWithin queues a copy on the device that is current.
func CopyWithin(stream, to, from uintptr, bytes uint64) error {
	return failed("aclrtMemcpyAsync", C.call_aclrtMemcpyAsync(C.uintptr_t(to), C.size_t(bytes), C.uintptr_t(from), C.size_t(bytes),
		C.acl_memcpy_device_to_device, C.uintptr_t(stream)))
}

// Inherit returns a function that makes the device that is current here the current one of another thread, to which the calling
// goroutine is locked then.
func Inherit() func() error {
	context := current()
	return func() error {
		runtime.LockOSThread()
		return failed("aclrtSetCurrentContext", C.call_aclrtSetCurrentContext(context))
	}
}
