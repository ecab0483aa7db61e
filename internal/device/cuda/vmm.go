//go:build cuda

package cuda

/*
#include <cuda.h>

static CUmemAllocationProp on_device(CUdevice device, CUmemAllocationHandleType handles) {
  CUmemAllocationProp p = {0};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = handles;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  return p;
}

// Rounds the bytes up to what the device allocates at least.
static CUresult create(CUdevice device, CUmemAllocationHandleType handles, size_t *bytes, CUmemGenericAllocationHandle *memory) {
  const CUmemAllocationProp p = on_device(device, handles);
  size_t unit;
  CUresult rc = cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (rc != CUDA_SUCCESS) return rc;
  *bytes = (*bytes + unit - 1) / unit * unit;
  return cuMemCreate(memory, *bytes, &p, 0);
}

static CUresult export_file(CUmemGenericAllocationHandle memory, int *fd) {
  return cuMemExportToShareableHandle(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult import_file(int fd, CUmemGenericAllocationHandle *memory) {
  return cuMemImportFromShareableHandle(memory, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static CUresult give_access(CUdevice device, size_t bytes, CUdeviceptr at) {
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuMemSetAccess(at, bytes, &access, 1);
}

// Gives the device an address for memory, which lives as long as the address then.
static CUresult map_memory(CUdevice device, CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr *at) {
  CUresult rc = cuMemAddressReserve(at, bytes, 0, 0, 0);
  if (rc != CUDA_SUCCESS) return rc;
  rc = cuMemMap(*at, bytes, 0, memory, 0);
  if (rc == CUDA_SUCCESS && (rc = give_access(device, bytes, *at)) != CUDA_SUCCESS) cuMemUnmap(*at, bytes);
  if (rc != CUDA_SUCCESS) cuMemAddressFree(*at, bytes);
  return rc;
}

static CUresult unmap_memory(CUdeviceptr at, size_t bytes) {
  CUresult rc = cuMemUnmap(at, bytes);
  return rc == CUDA_SUCCESS ? cuMemAddressFree(at, bytes) : rc;
}
*/
import "C"

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"gorgonia.org/cu"

	"sagecomm/internal/device"
	"sagecomm/internal/lazylink"
)

// This file has memory of cuMemCreate. To give it back waits for nothing, whereas cuMemFree and cuIpcCloseMemHandle wait for the device,
// and keep other threads from calling the driver meanwhile (measured on driver 580.159.04). It has no handles of legacy IPC, but the
// driver gives a file for it. Its address belongs to the process that maps it.

var (
	forMaps = []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
		"cuMemAddressFree", "cuMemRelease"}
	forFiles = append([]string{"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"}, forMaps...)
)

// mapped is memory at an address of its own.
type mapped struct {
	d     *Driver
	at    C.CUdeviceptr
	bytes C.size_t
}

func (m mapped) Address() uintptr { return uintptr(m.at) }

// Release implements device.Memory. Memory that the driver does not take back stays mapped.
func (m mapped) Release() {
	m.d.giveBack(func() error { return failed(C.unmap_memory(m.at, m.bytes)) })
}

var errNoMaps = errors.New("no memory at addresses of its own")

// hasFiles returns why the driver or the device shares no memory by files.
func (d *Driver) hasFiles() error {
	return d.has(forFiles, C.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "the device has no files for memory")
}

// hasMaps returns why there is no memory of cuMemCreate.
func (d *Driver) hasMaps() error {
	return d.has(forMaps, C.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "the device maps no memory at addresses")
}

func (d *Driver) has(functions []string, attribute C.CUdevice_attribute, without string) error {
	for _, name := range functions {
		if !lazylink.CUDAHas(name) {
			return fmt.Errorf("the CUDA driver has no %s", name)
		}
	}
	on, err := cu.GetDevice(d.index)
	if err != nil {
		return err
	}
	can := C.int(0)
	if err := failed(C.cuDeviceGetAttribute(&can, attribute, C.CUdevice(on))); err != nil {
		return err
	}
	if can == 0 {
		return errors.New(without)
	}
	return nil
}

// allocateMapped allocates memory that other processes do not share. Where reachable, the other devices of this process that can use it have
// it at its address too: a library enables access to memory of cuMemAlloc, and not to this. One that refuses does without.
func (d *Driver) allocateMapped(bytes uint64, reachable bool) (device.Memory, error) {
	m := mapped{d: d.alone(), bytes: C.size_t(bytes)}
	err := d.doRelaxed("cannot allocate memory of the device", func() error {
		if err := d.hasMaps(); err != nil {
			return fmt.Errorf("%w: %w", errNoMaps, err)
		}
		on, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		err = m.create(C.CU_MEM_HANDLE_TYPE_NONE, C.CUdevice(on), func(C.CUmemGenericAllocationHandle) error { return nil })
		if err != nil || !reachable {
			return err
		}
		others, _ := users.Get(d.index, d.users)
		for _, other := range others {
			C.give_access(other, m.bytes, m.at)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// users has the other devices of this process that can use memory of a device, by its index.
var users device.Once[int, []C.CUdevice]

func (d *Driver) users() (list []C.CUdevice, err error) {
	own, err := cu.GetDevice(d.index)
	if err != nil {
		return nil, err
	}
	n, err := cu.NumDevices()
	for i := 0; i < n && err == nil; i++ {
		var other cu.Device
		if other, err = cu.GetDevice(i); err != nil || i == d.index {
			continue
		}
		can := C.int(0)
		if err = failed(C.cuDeviceCanAccessPeer(&can, C.CUdevice(other), C.CUdevice(own))); err == nil && can != 0 {
			list = append(list, C.CUdevice(other))
		}
	}
	return list, err
}

// create makes the memory and gives the device its address. before is called in between.
// Requires: the context of the device is current.
func (m *mapped) create(handles C.CUmemAllocationHandleType, on C.CUdevice, before func(C.CUmemGenericAllocationHandle) error) error {
	var memory C.CUmemGenericAllocationHandle
	if err := failed(C.create(on, handles, &m.bytes, &memory)); err != nil {
		return err
	}
	defer C.cuMemRelease(memory) // the address keeps it, and so does a file
	if err := before(memory); err != nil {
		return err
	}
	return m.place(on, memory)
}

// place gives the device an address for memory.
func (m *mapped) place(on C.CUdevice, memory C.CUmemGenericAllocationHandle) error {
	return failed(C.map_memory(on, memory, m.bytes, &m.at))
}

// withFiles calls f with the device, if it shares memory by files.
func (d *Driver) withFiles(what string, f func(on C.CUdevice) error) error {
	return d.doRelaxed(what, func() error {
		if err := d.hasFiles(); err != nil {
			return err
		}
		on, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		return f(C.CUdevice(on))
	})
}

// shareByFile is Share by a file.
func (d *Driver) shareByFile(bytes uint64) (device.Memory, device.Shared, error) {
	m, fd := mapped{d: d.alone(), bytes: C.size_t(bytes)}, C.int(-1)
	err := d.withFiles("cannot share memory of the device by a file", func(on C.CUdevice) error {
		return m.create(C.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, on, func(memory C.CUmemGenericAllocationHandle) error {
			return failed(C.export_file(memory, &fd))
		})
	})
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(int(fd))
		}
		return nil, device.Shared{}, err
	}
	return m, device.Shared{File: int(fd), Bytes: uint64(m.bytes)}, nil
}

// openFile is OpenShared of a file.
func (d *Driver) openFile(s device.Shared) (device.Memory, error) {
	m := mapped{d: d.alone(), bytes: C.size_t(s.Bytes)}
	err := d.withFiles("cannot open memory that another process shares by a file", func(on C.CUdevice) error {
		var memory C.CUmemGenericAllocationHandle
		if err := failed(C.import_file(C.int(s.File), &memory)); err != nil {
			return err
		}
		defer C.cuMemRelease(memory)
		return m.place(on, memory)
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}
