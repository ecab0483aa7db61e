package devices

import (
	"bytes"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/tests/devices/raw"
)

const (
	length = 5000 // bytes that are copied
	words  = 4096 // bytes of pinned memory in front of them
	used   = 1    // the device that is used; the thread's own is 0
)

// bed is a program with a stream and memory on a device, and the runtime of that device.
type bed struct {
	*program
	d                    mover
	in, out, caller      device.Stream
	data, source, target uintptr // memory of the device; pinned memory of the program
	pinned               device.Pinned
}

func newBed(t *testing.T, v vendor) *bed {
	t.Helper()
	p := newProgram(t, v)
	p.use(used)
	b := &bed{program: p, caller: device.Stream{Handle: p.made(v.stream)}, data: p.made(v.malloc, length, 0),
		source: p.made(v.mallocHost, length), target: p.made(v.mallocHost, length)}
	for i := range raw.Bytes(b.source, length) {
		raw.Bytes(b.source, length)[i] = byte(i * 7)
	}
	p.call(v.setDevice, 0)
	var err error
	b.d, err = v.open(used)
	require.NoError(t, err)
	b.pinned, err = b.d.Pin(words + length)
	require.NoError(t, err)
	if uintptr(b.pinned.Address())%256 != 0 {
		t.Errorf("pinned memory at %v is not aligned", b.pinned.Address())
	}
	clear(hostBytes(b.pinned, words+length))
	b.in, b.out = b.stream(device.Inputs), b.stream(device.Outputs)
	return b
}

func (b *bed) stream(role device.Role) device.Stream {
	b.t.Helper()
	s, err := b.d.NewStream(role)
	if err != nil || s.Handle == 0 {
		b.t.Fatalf("stream %+v: %v", s, err)
	}
	return s
}

func (b *bed) must(err error) {
	b.t.Helper()
	require.NoError(b.t, err)
	if now := b.current(); now != 0 {
		b.t.Fatalf("the thread's device is %d now; it was 0", now)
	}
}

// block is the pinned memory of the operation and what lies on the device.
func (b *bed) block() device.Copy {
	return device.Copy{Host: unsafe.Add(b.pinned.Address(), words), Device: b.data, Bytes: length}
}

// synchronize waits for a stream of the device.
func (b *bed) synchronize(s device.Stream) {
	b.t.Helper()
	b.call(b.v.setDevice, used)
	b.call(b.v.synchronize, s.Handle)
	b.call(b.v.setDevice, 0)
}

// queueInput queues what brings the input to the host: the caller's own copy into the device, which is late, and the library's
// out of it.
func (b *bed) queueInput() {
	b.t.Helper()
	b.call(b.v.setDevice, used)
	b.call("emulator_hold", b.caller.Handle)
	b.copy(b.data, b.source, length, b.v.toDevice, b.caller.Handle)
	b.call(b.v.setDevice, 0)
	b.must(b.d.Order(b.caller, b.in))
	b.must(b.d.CopyIn(b.in, b.block()))
	b.must(b.d.WriteValue(b.in, wordOf(b.pinned, 0), 3))
	b.call(b.v.setDevice, used)
	b.call("emulator_release_stream", b.caller.Handle)
	b.call(b.v.setDevice, 0)
}

// queueOutput queues what brings the output to the device, behind a word where streams can wait for one, and then to the caller.
func (b *bed) queueOutput() {
	b.t.Helper()
	if w, waits := b.d.(device.Waiter); waits {
		b.must(w.WaitValue(b.out, wordOf(b.pinned, 128), 2))
	}
	b.must(b.d.CopyOut(b.out, b.block()))
	b.must(b.d.Order(b.out, b.caller))
	b.call(b.v.setDevice, used)
	b.copy(b.target, b.data, length, b.v.toHost, b.caller.Handle)
	b.call(b.v.setDevice, 0)
}

// compute is what the host does between input and output.
func (b *bed) compute() {
	what := raw.Memory(1)
	b.Call("emulator_host_write", uintptr(b.block().Host), length, what)
	for i := range hostBytes(b.pinned, words+length)[words:] {
		hostBytes(b.pinned, words+length)[words+i] ^= 0xff
	}
	flag := wordOf(b.pinned, 128)
	b.Call("emulator_store", uintptr(unsafe.Pointer(flag)), 2)
	atomic.StoreUint32(flag, 2)
}

// wrong returns what is wrong with the result.
func (b *bed) wrong() string {
	want := bytes.Clone(raw.Bytes(b.source, length))
	for i := range want {
		want[i] ^= 0xff
	}
	if !bytes.Equal(raw.Bytes(b.target, length), want) {
		return "the output is not what the host has computed"
	}
	return reports(b.Library)
}

// run carries out an operation and returns what was wrong with it.
func (b *bed) run() string {
	b.t.Helper()
	_, waits := b.d.(device.Waiter)
	b.queueInput()
	if waits {
		b.queueOutput()
	}
	b.synchronize(b.in)
	if flag := atomic.LoadUint32(wordOf(b.pinned, 0)); flag != 3 {
		return "the flag behind the input was not written"
	}
	if !bytes.Equal(hostBytes(b.pinned, words+length)[words:], raw.Bytes(b.source, length)) {
		return "the input is not what the caller's stream has written"
	}
	b.compute()
	if !waits {
		b.queueOutput()
	}
	b.synchronize(b.caller)
	return b.wrong()
}

// Copies come behind what the caller's stream held, flags behind the copies, outputs behind the flag of the host and before what the
// caller queues afterwards. The runtime uses its device on whatever thread it is called, and gives the thread its own back.
func TestAnOperationInStreams(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, variables := range schedules() {
			t.Run(strings.Join(variables, " "), func(t *testing.T) {
				isolated(t, folder(t), variables, func(t *testing.T) {
					runtime.LockOSThread()
					if wrong := newBed(t, v).run(); wrong != "" {
						t.Error(wrong)
					}
				})
			})
		}
	})
}

// Each call that orders streams is needed: where the vendor's library leaves one out and reports success, a result is wrong or the
// checker reports a conflict. A runtime that recorded another stream, or none, would look like this.
func TestEachOrderIsNeeded(t *testing.T) {
	orders := map[string][]string{
		"ascend":    {"aclrtRecordEvent@1", "aclrtStreamWaitEvent@1", "aclrtRecordEvent@2", "aclrtStreamWaitEvent@2", "aclrtValueWait@1", "aclrtMemcpyAsync@2", "aclrtMemcpyAsync@3"},
		"cambricon": {"cnrtPlaceNotifier@1", "cnrtQueueWaitNotifier@1", "cnrtPlaceNotifier@2", "cnrtQueueWaitNotifier@2", "cnrtMemcpyAsync_V2@2", "cnrtMemcpyAsync_V2@3", "cnrtInvokeHostFunc@1"},
	}
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			for _, call := range append(orders[v.name], "") {
				b := newBed(t, v)
				b.plan(call + "=#0")
				b.Call("emulator_reset_reports")
				if wrong := b.run(); (wrong == "") != (call == "") {
					t.Errorf("%q was left out: %q", call, wrong)
				}
			}
		})
	})
}

// A goroutine may be on a thread that has never chosen a device.
func TestAThreadWithoutADevice(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			b := newBed(t, v)
			errs := make(chan error)
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				errs <- b.d.WriteValue(b.in, wordOf(b.pinned, 0), 1)
			}()
			if err := <-errs; err != nil {
				t.Error(err)
			}
			b.synchronize(b.in)
			if flag := atomic.LoadUint32(wordOf(b.pinned, 0)); flag != 1 {
				t.Errorf("the flag is %d", flag)
			}
		})
	})
}
