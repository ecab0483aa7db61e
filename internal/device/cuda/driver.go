//go:build cuda

package cuda

// #include <cuda.h>
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/lazylink"
)

// needed are the functions that this package calls, as they are linked. A driver without one of them is too old.
var needed = []string{
	"cuInit", "cuGetErrorName", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuMemHostAlloc",
	"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamCreateWithPriority", "cuCtxGetStreamPriorityRange",
	"cuStreamWaitEvent", "cuStreamIsCapturing", "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuEventCreate", "cuEventDestroy_v2",
	"cuEventRecord", "cuDeviceGetUuid_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyDtoDAsync_v2",
	"cuDeviceCanAccessPeer", "cuPointerGetAttribute", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
	"cuIpcCloseMemHandle", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2",
	"cuThreadExchangeStreamCaptureMode",
}

// Present returns why there is no driver. It does not start the driver.
func Present() error {
	if err := lazylink.BindCUDA("libcuda.so.1"); err != nil {
		return fmt.Errorf("no CUDA driver: %w", err)
	}
	return nil
}

// load opens and starts the driver at its first call. It returns why there is none.
var load = sync.OnceValue(func() error {
	if err := Present(); err != nil {
		return err
	}
	for _, name := range needed {
		if !lazylink.CUDAHas(name) {
			return fmt.Errorf("the CUDA driver has no %s: it is older than CUDA 12", name)
		}
	}
	if err := failed(C.cuInit(0)); err != nil {
		return fmt.Errorf("the CUDA driver does not start: cuInit: %w", err)
	}
	return nil
})

// Devices returns how many devices this process may use, or why there is none.
func Devices() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return 0, fmt.Errorf("the CUDA driver finds no device: %w", named(err))
	}
	if n == 0 {
		return 0, errors.New("the CUDA driver finds no device")
	}
	return n, nil
}

var contexts sync.Map // of cu.CUContext, by index of the device; the process keeps them

// contextOf returns the primary context of a device.
func contextOf(index int) (cu.CUContext, error) {
	if known, ok := contexts.Load(index); ok {
		return known.(cu.CUContext), nil
	}
	device, err := cu.GetDevice(index)
	if err != nil {
		return cu.CUContext{}, fmt.Errorf("no CUDA device %d: %w", index, named(err))
	}
	context, err := device.RetainPrimaryCtx()
	if err != nil {
		return cu.CUContext{}, fmt.Errorf("cannot use CUDA device %d: %w", index, named(err))
	}
	contexts.Store(index, context)
	return context, nil
}

// do calls f while the primary context of the device is current on this thread. It gives the thread's own context back.
func (d *Driver) do(what string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cu.PushCurrentCtx(d.context)
	if err == nil {
		err = d.pops(f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, named(err))
	}
	return nil
}

// pops calls f, then takes the context off the thread, after a panic too.
func (d *Driver) pops(f func() error) (err error) {
	defer func() {
		if _, popped := cu.PopCurrentCtx(); err == nil {
			err = popped
		}
	}()
	return f()
}

// failed returns the error for a result of the driver.
func failed(rc C.CUresult) error {
	if rc == C.CUDA_SUCCESS {
		return nil
	}
	var name *C.char
	if C.cuGetErrorName(rc, &name) != C.CUDA_SUCCESS {
		return fmt.Errorf("error %d of CUDA", int(rc))
	}
	return errors.New(C.GoString(name))
}

// named gives an error of cu, which is a number, the name that cuda.h gives it.
func named(err error) error {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Int {
		return failed(C.CUresult(v.Int()))
	}
	return err
}

// A stream of cu holds the handle that the driver has given.
func streamOf(handle uintptr) cu.Stream { return *(*cu.Stream)(unsafe.Pointer(&handle)) }
func handleOf(s cu.Stream) uintptr      { return *(*uintptr)(unsafe.Pointer(&s)) }

var _ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(uintptr(0))] // else this does not compile
