//go:build cuda

package cuda

// #include <stdbool.h>
// #include <cuda.h>
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/device"
)

var _ device.Sharer = (*Driver)(nil)

// Reaches implements device.Sharer. A device that this process does not see cannot be reached.
func (d *Driver) Reaches() (list []string, err error) {
	err = d.do("cannot ask which devices the device can reach", func() error {
		n, err := cu.NumDevices()
		if err != nil {
			return err
		}
		own, err := cu.GetDevice(d.index)
		for i := 0; i < n && err == nil; i++ {
			var peer cu.Device
			if peer, err = cu.GetDevice(i); err != nil {
				break
			}
			can := C.int(1)
			if i != d.index {
				can = 0
				if err = failed(C.cuDeviceCanAccessPeer(&can, C.CUdevice(own), C.CUdevice(peer))); err != nil {
					break
				}
			}
			var id string
			if id, err = uuidOf(peer); err == nil && can != 0 {
				list = append(list, id)
			}
		}
		return err
	})
	return list, err
}

// Share implements device.Sharer.
func (d *Driver) Share(bytes uint64, how device.Sharing) (device.Memory, device.Shared, error) {
	if how == device.ByFile {
		return d.shareByFile(bytes)
	}
	return d.shareByHandle(bytes)
}

// withoutHandles has why a device gives no handles, by its index.
var withoutHandles sync.Map

// aside has memory that has got no handle, for the next try.
var aside struct {
	mu   sync.Mutex
	list map[asideKey][]device.Memory
}

type asideKey struct {
	index int
	bytes uint64
}

// takeAside returns memory that was put aside, nil if there is none.
func takeAside(of asideKey) device.Memory {
	aside.mu.Lock()
	defer aside.mu.Unlock()
	list := aside.list[of]
	if len(list) == 0 {
		return nil
	}
	aside.list[of] = list[:len(list)-1]
	return list[len(list)-1]
}

func putAside(of asideKey, m device.Memory) {
	aside.mu.Lock()
	defer aside.mu.Unlock()
	if aside.list == nil {
		aside.list = map[asideKey][]device.Memory{}
	}
	aside.list[of] = append(aside.list[of], m)
}

// shareByHandle is Share by legacy IPC, whose handle names the whole allocation in which the memory lies. Where the memory gets no handle it
// stays allocated, because to free it waits for the device. So a device whose driver has no handles is asked once, and after another error, as a
// shortage is, the next try takes the same memory.
func (d *Driver) shareByHandle(bytes uint64) (device.Memory, device.Shared, error) {
	var s device.Shared
	if why, known := withoutHandles.Load(d.index); known {
		return nil, s, why.(error)
	}
	key, never := asideKey{d.index, bytes}, false
	m, err := takeAside(key), error(nil)
	if m == nil {
		m, err = d.allocate(bytes)
	}
	if err != nil {
		return nil, s, err
	}
	err = d.doRelaxed("cannot share memory of the device", func() error {
		at, capable := C.CUdeviceptr(m.Address()), C.bool(false)
		if rc := C.cuPointerGetAttribute(unsafe.Pointer(&capable), C.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at); rc != C.CUDA_SUCCESS {
			never = lacking(rc)
			return failed(rc)
		}
		if !capable {
			never = true
			return errors.New("the driver has no IPC handles for it")
		}
		var base C.CUdeviceptr
		if err := failed(C.cuMemGetAddressRange(&base, nil, at)); err != nil {
			return err
		}
		var h C.CUipcMemHandle
		if rc := C.cuIpcGetMemHandle(&h, base); rc != C.CUDA_SUCCESS {
			never = lacking(rc)
			return failed(rc)
		}
		s.Handle = C.GoBytes(unsafe.Pointer(&h), C.sizeof_CUipcMemHandle)
		s.Offset = uint64(at - base)
		return nil
	})
	if err == nil {
		return m, s, nil
	}
	if never {
		withoutHandles.Store(d.index, err)
	} else {
		putAside(key, m)
	}
	return nil, s, err
}

// lacking reports whether an error says that the driver does not have the function, for this kind of memory.
func lacking(rc C.CUresult) bool {
	return rc == C.CUDA_ERROR_NOT_SUPPORTED || rc == C.CUDA_ERROR_INVALID_VALUE
}

// imported is memory of another process.
type imported struct {
	d        *Driver
	base, at C.CUdeviceptr
}

func (m imported) Address() uintptr { return uintptr(m.at) }

// Release implements device.Memory. Memory that the driver does not take back stays mapped.
func (m imported) Release() {
	m.d.giveBack(func() error { return failed(C.cuIpcCloseMemHandle(m.base)) })
}

// OpenShared implements device.Sharer. The driver gives this device access to the other one, if the memory lies there.
func (d *Driver) OpenShared(s device.Shared, how device.Sharing) (device.Memory, error) {
	if how == device.ByFile {
		return d.openFile(s)
	}
	var h C.CUipcMemHandle
	if len(s.Handle) != C.sizeof_CUipcMemHandle {
		return nil, fmt.Errorf("a handle of shared memory has %d bytes, expected %d", len(s.Handle), C.sizeof_CUipcMemHandle)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&h)), C.sizeof_CUipcMemHandle), s.Handle)
	m := imported{d: d.alone()}
	err := d.doRelaxed("cannot open memory that another process shares", func() error {
		return failed(C.cuIpcOpenMemHandle(&m.base, h, C.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
	})
	if err != nil {
		return nil, err
	}
	m.at = m.base + C.CUdeviceptr(s.Offset)
	return m, nil
}

// Register implements device.Sharer.
func (d *Driver) Register(memory []byte) error {
	return d.doRelaxed("cannot register host memory", func() error {
		return failed(C.cuMemHostRegister(hostOf(memory), C.size_t(len(memory)), C.CU_MEMHOSTREGISTER_PORTABLE|C.CU_MEMHOSTREGISTER_DEVICEMAP))
	})
}

// AddressOf implements device.Sharer.
func (d *Driver) AddressOf(memory []byte) (uintptr, error) {
	var at C.CUdeviceptr
	err := d.do("cannot use registered host memory on the device", func() error {
		return failed(C.cuMemHostGetDevicePointer(&at, hostOf(memory), 0))
	})
	return uintptr(at), err
}

func hostOf(memory []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(memory)) }

// Signal implements device.Sharer.
func (d *Driver) Signal(s device.Stream, at uintptr, value uint32) error {
	return d.do("cannot queue the write of a flag", func() error {
		return streamOf(s.Handle).WriteValue32(cu.DevicePtr(at), value, C.CU_STREAM_WRITE_VALUE_DEFAULT)
	})
}

// Await implements device.Sharer.
func (d *Driver) Await(s device.Stream, at uintptr, value uint32) error {
	return d.do("cannot queue a wait for a flag", func() error {
		return streamOf(s.Handle).WaitOnValue32(cu.DevicePtr(at), value, C.CU_STREAM_WAIT_VALUE_GEQ)
	})
}

// alone returns the driver without the stream of an operation's caller.
func (d *Driver) alone() *Driver { return &Driver{index: d.index, context: d.context} }

func uuidOf(of cu.Device) (string, error) {
	var id C.CUuuid
	err := failed(C.cuDeviceGetUuid_v2(&id, C.CUdevice(of)))
	return hex.EncodeToString(unsafe.Slice((*byte)(unsafe.Pointer(&id)), unsafe.Sizeof(id))), err
}
