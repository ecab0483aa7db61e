//go:build cuda

package cuda

/*
#include <cuda.h>

// A header of CUDA 13 gives this name to a function with another list of parameters; a driver has both.
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *);

static CUresult capture_of(CUstream stream, cuuint64_t *number) {
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  CUresult rc = cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL);
  *number = rc == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
  return rc;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/device"
	"sagecomm/internal/lazylink"
)

var _ device.Capturer = (*Driver)(nil)

const captureInfo = "cuStreamGetCaptureInfo_v2"

// CaptureOf implements device.Capturer.
func (d *Driver) CaptureOf(s device.Stream) (uint64, error) {
	if !lazylink.CUDAHas(captureInfo) {
		return 0, fmt.Errorf("%s: the CUDA driver has no %s", askingForCapture, captureInfo)
	}
	stream := streamOf(s.Handle)
	var number C.cuuint64_t
	err := d.do(askingForCapture, func() error {
		return failed(C.capture_of((C.CUstream)(unsafe.Pointer(stream.C())), &number))
	})
	return uint64(number), err
}

// Relaxed implements device.Capturer. The mode of the thread comes back after a panic, too.
func (d *Driver) Relaxed(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode := C.CUstreamCaptureMode(C.CU_STREAM_CAPTURE_MODE_RELAXED)
	if err := failed(C.cuThreadExchangeStreamCaptureMode(&mode)); err != nil {
		return fmt.Errorf("cannot allow a call during a capture: %w", err)
	}
	defer func() {
		if back := failed(C.cuThreadExchangeStreamCaptureMode(&mode)); err == nil && back != nil {
			err = fmt.Errorf("cannot forbid again what captures forbid: %w", back)
		}
	}()
	return f()
}

// doRelaxed is do for calls that make or give back memory, streams and modules. A thread of this library makes them at any time, also while
// another thread of the process captures, whose capture they would break.
func (d *Driver) doRelaxed(what string, f func() error) error {
	return d.Relaxed(func() error { return d.do(what, f) })
}

func (d *Driver) giveBack(f func() error) { _ = d.doRelaxed("", f) }

// mark is an event, which the process keeps.
type mark struct {
	d     *Driver
	event cu.Event
}

// NewMark implements device.Capturer.
func (d *Driver) NewMark() (device.Mark, error) {
	m := &mark{d: d.alone()}
	err := d.do("cannot make an event", func() (err error) {
		m.event, err = cu.MakeEvent(cu.DisableTiming)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Set implements device.Mark.
func (m *mark) Set(s device.Stream) error {
	return m.d.do("cannot record an event in a capture", func() error { return m.event.Record(streamOf(s.Handle)) })
}

// Follow implements device.Mark.
func (m *mark) Follow(s device.Stream) error {
	return m.d.do("cannot order a captured stream behind the operation before", func() error { return streamOf(s.Handle).Wait(m.event, 0) })
}
