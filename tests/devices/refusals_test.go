package devices

import (
	"errors"
	"runtime"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/ascend"
	"sagecomm/internal/device/cambricon"
	table "sagecomm/internal/device/vendors"
)

// operation is one whose caller brings no bridge.
func operation(stream uintptr) coll.Op {
	return coll.Op{Kind: coll.AllReduce, Device: coll.Device{Type: coll.PrivateUse1, Index: used}, Stream: stream}
}

// Torch has one number for the devices of both vendors. The runtime is the one that has devices here.
func TestWithoutABridge(t *testing.T) {
	t.Run("ascend", func(t *testing.T) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			p := newProgram(t, vendors[0])
			p.use(used)
			a, err := table.New(operation(p.made("aclrtCreateStream")))
			if _, is := a.(*ascend.Driver); !is || err != nil {
				t.Errorf("%T, %v", a, err)
			}
		})
	})
	t.Run("none", func(t *testing.T) {
		isolated(t, "", nil, func(t *testing.T) {
			const want = "the caller gives no access to the streams of the device (sagecomm_op.bridge), and this library has none" +
				"; no Ascend runtime: libascendcl.so: cannot open shared object file: No such file or directory" +
				"; no Cambricon runtime: libcnrt.so: cannot open shared object file: No such file or directory"
			if _, err := table.New(operation(0)); err == nil || err.Error() != want {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("cambricon", func(t *testing.T) {
		isolated(t, onlyIn(t, "libcnrt.so"), nil, func(t *testing.T) {
			if _, err := table.New(operation(0)); !errors.Is(err, cambricon.ErrCannotWait) {
				t.Errorf("%v", err)
			}
		})
	})
}

// A stream that is being captured, and an operation whose caller cannot wait for its end, are refused before anything is queued.
func TestOperationsThatAreRefused(t *testing.T) {
	isolated(t, folder(t), nil, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[0])
		p.use(used)
		stream := p.made("aclrtCreateStream")
		beside := operation(stream)
		beside.Ordering = coll.Beside
		if _, err := ascend.New(beside); !errors.Is(err, device.ErrBeside) {
			t.Errorf("beside: %v", err)
		}
		if _, err := ascend.New(operation(stream)); err != nil {
			t.Errorf("in the stream: %v", err)
		}
		p.call("aclmdlRICaptureBegin", stream, 2)
		if _, err := ascend.New(operation(stream)); !errors.Is(err, device.ErrCaptured) {
			t.Errorf("captured: %v", err)
		}
	})
}
