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

// Gives the device an address for memory, which lives as long as the address then.
static CUresult map_memory(CUdevice device, CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr *at) {
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult rc = cuMemAddressReserve(at, bytes, 0, 0, 0);
  if (rc != CUDA_SUCCESS) return rc;
  rc = cuMemMap(*at, bytes, 0, memory, 0);
  if (rc == CUDA_SUCCESS && (rc = cuMemSetAccess(*at, bytes, &access, 1)) != CUDA_SUCCESS) cuMemUnmap(*at, bytes);
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

// allocateMapped allocates memory that is not shared.
func (d *Driver) allocateMapped(bytes uint64) (device.Memory, error) {
	m := mapped{d: d.alone(), bytes: C.size_t(bytes)}
	err := d.doRelaxed("cannot allocate memory of the device", func() error {
		if err := d.hasMaps(); err != nil {
			return fmt.Errorf("%w: %w", errNoMaps, err)
		}
		on, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		var memory C.CUmemGenericAllocationHandle
		if err := failed(C.create(C.CUdevice(on), C.CU_MEM_HANDLE_TYPE_NONE, &m.bytes, &memory)); err != nil {
			return err
		}
		defer C.cuMemRelease(memory) // the address keeps it
		return failed(C.map_memory(C.CUdevice(on), memory, m.bytes, &m.at))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// shareByFile is Share by a file.
func (d *Driver) shareByFile(bytes uint64) (device.Memory, device.Shared, error) {
	m, s := mapped{d: d.alone(), bytes: C.size_t(bytes)}, device.Shared{}
	err := d.doRelaxed("cannot share memory of the device by a file", func() error {
		if err := d.hasFiles(); err != nil {
			return err
		}
		on, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		var memory C.CUmemGenericAllocationHandle
		if err := failed(C.create(C.CUdevice(on), C.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &m.bytes, &memory)); err != nil {
			return err
		}
		defer C.cuMemRelease(memory) // the address and the file keep it
		var fd C.int
		if err := failed(C.export_file(memory, &fd)); err != nil {
			return err
		}
		if err := failed(C.map_memory(C.CUdevice(on), memory, m.bytes, &m.at)); err != nil {
			_ = unix.Close(int(fd))
			return err
		}
		s.File, s.Bytes = int(fd), uint64(m.bytes)
		return nil
	})
	if err != nil {
		return nil, s, err
	}
	return m, s, nil
}

// openFile is OpenShared of a file.
func (d *Driver) openFile(s device.Shared) (device.Memory, error) {
	m := mapped{d: d.alone(), bytes: C.size_t(s.Bytes)}
	err := d.doRelaxed("cannot open memory that another process shares by a file", func() error {
		if err := d.hasFiles(); err != nil {
			return err
		}
		on, err := cu.GetDevice(d.index)
		if err != nil {
			return err
		}
		var memory C.CUmemGenericAllocationHandle
		if err := failed(C.import_file(C.int(s.File), &memory)); err != nil {
			return err
		}
		defer C.cuMemRelease(memory)
		return failed(C.map_memory(C.CUdevice(on), memory, m.bytes, &m.at))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}
