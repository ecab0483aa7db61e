package devices

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
)

// recording compares the calls of a vendor's functions with the vendors' documentation. An expected call is the name of the function
// and its arguments, each of which is a number, "*" for the address of an output, or a name of vars. "->" stands before what a call gives back, "text"
// before what a text has to be. A name is bound where it stands behind "?", and where a call gives it back for the first time.
type recording struct {
	t    *testing.T
	path string
	read int // bytes of the file
	vars map[string]uintptr
}

func (r *recording) calls() []string {
	text, err := os.ReadFile(r.path)
	require.NoError(r.t, err)
	list := strings.FieldsFunc(string(text[r.read:]), func(c rune) bool { return c == '\n' })
	r.read = len(text)
	return list
}

// fits reports whether a call is an expected one. It binds names, also if the call turns out not to be the expected one.
func (r *recording) fits(call, expected string) bool {
	got, want := strings.Fields(call), strings.Fields(expected)
	if len(got) != len(want) || len(got) == 0 || got[0] != want[0] {
		return false
	}
	if got[0] == "text" {
		return got[1] == want[1]
	}
	for i := 1; i < len(got); i++ {
		if !r.argumentFits(got[i], want[i], want[0] == "->") {
			return false
		}
	}
	return true
}

// argumentFits reports whether an argument of a call, or what it gives back, is the expected one.
func (r *recording) argumentFits(got, want string, givenBack bool) bool {
	r.t.Helper()
	n, err := strconv.ParseInt(got, 10, 64)
	require.NoError(r.t, err, "the call has %q", got)
	if want == "*" {
		return true
	}
	if number, err := strconv.ParseInt(want, 10, 64); err == nil {
		return n == number
	}
	name, bind := strings.CutPrefix(want, "?")
	if value, known := r.vars[name]; !bind && (known || !givenBack) {
		return known && uintptr(n) == value
	}
	r.vars[name] = uintptr(n)
	return true
}

// expect calls a method and compares what it calls.
func (r *recording) expect(what string, method func() error, expected ...string) {
	r.t.Helper()
	r.calls()
	if err := method(); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	calls := r.calls()
	for i := range max(len(calls), len(expected)) {
		switch {
		case i >= len(calls):
			r.t.Errorf("%s: no call %q", what, expected[i])
		case i >= len(expected):
			r.t.Errorf("%s: an unexpected call %q", what, calls[i])
		case !r.fits(calls[i], expected[i]):
			r.t.Errorf("%s: call %d is %q, expected %q, where %v", what, i, calls[i], expected[i], r.vars)
		}
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// inside puts the calls by which a runtime uses its device, and gives the thread its own one back, around others.
func inside(v vendor, calls ...string) []string {
	before, after := []string{"aclrtGetCurrentContext *", "-> context0", "aclrtSetCurrentContext context1"}, []string{"aclrtSetCurrentContext context0"}
	if v.name == "cambricon" {
		before, after = []string{"cnrtGetDevice *", "-> 0", "cnrtSetDevice 1"}, []string{"cnrtSetDevice 0"}
	}
	return append(append(before, calls...), after...)
}

// The table of this test has the order and the unit of each argument, and the numbers of all constants, as the vendors document
// them: lengths are bytes, ACL has the event first in a record and last in a wait, CNRT the notifier first in both, "to the host" is
// 2 for both but "to the device" is 1 for ACL and 0 for CNRT.
func TestArgumentsOfEachCall(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		path := filepath.Join(t.TempDir(), "calls")
		isolated(t, folder(t), []string{"EMULATOR_CALLS=" + path}, func(t *testing.T) {
			runtime.LockOSThread()
			b := newBed(t, v)
			r := &recording{t: t, path: os.Getenv("EMULATOR_CALLS"), vars: map[string]uintptr{"caller": b.caller.Handle, "in": b.in.Handle,
				"out": b.out.Handle, "data": b.data, "host": uintptr(b.block().Host)}}
			opened := r.calls()
			if v.name == "ascend" {
				for i, call := range opened { // the first context that the runtime asks for is that of the thread
					if call == "aclrtSetDevice 1" && strings.HasPrefix(opened[i+1], "aclrtGetCurrentContext") {
						r.fits(opened[i+2], "-> context1")
					}
				}
				arguments(r, b, v, ascendCalls)
			} else {
				arguments(r, b, v, cambriconCalls)
			}
		})
	})
}

// expectedCalls are the calls of a runtime's methods, without those that use the device.
type expectedCalls struct {
	pin, stream, order, copyIn, copyOut, write, wait []string
	identity, allocate, within, free                 []string // of a Launcher
}

var ascendCalls = expectedCalls{
	pin:     []string{"aclrtMallocHost * 8192", "-> allocated", "aclrtHostRegister page 4096 0 *", "-> mapped"},
	stream:  []string{"aclrtCreateStreamWithConfig * 0 3", "-> made"},
	order:   []string{"aclrtCreateEventExWithFlag * 1", "-> event", "aclrtRecordEvent event caller", "aclrtStreamWaitEvent in event", "aclrtDestroyEvent event"},
	copyIn:  []string{"aclrtMemcpyAsync host 5000 data 5000 2 in"},
	copyOut: []string{"aclrtMemcpyAsync data 5000 host 5000 1 out"},
	write:   []string{"aclrtValueWrite mapped128 77 0 in"},
	wait:    []string{"aclrtValueWait mapped128 55 0 out"},

	identity: []string{"aclrtGetPhyDevIdByLogicDevId 1 *"},
	allocate: []string{"aclrtMalloc * 7000 0", "-> memory"},
	within:   []string{"aclrtMemcpyAsync memory 5000 data 5000 3 in"},
	free:     []string{"aclrtFree memory"},
}

var cambriconCalls = expectedCalls{
	pin:     []string{"cnrtHostMalloc * 556", "-> allocated"},
	stream:  []string{"cnrtQueueCreate *", "-> made"},
	order:   []string{"cnrtNotifierCreateWithFlags * 4", "-> event", "cnrtPlaceNotifier event caller", "cnrtQueueWaitNotifier event in 0", "cnrtNotifierDestroy event"},
	copyIn:  []string{"cnrtMemcpyAsync_V2 host data 5000 in 2"},
	copyOut: []string{"cnrtMemcpyAsync_V2 data host 5000 out 0"},
	write:   []string{"cnrtInvokeHostFunc in * *"},

	identity: []string{"cnrtDeviceGetPCIBusId * 64 1"},
	allocate: []string{"cnrtMalloc * 7000", "-> memory"},
	within:   []string{"cnrtMemcpyAsync_V2 memory data 5000 in 1"},
	free:     []string{"cnrtFree memory"},
}

func arguments(r *recording, b *bed, v vendor, want expectedCalls) {
	var small device.Pinned
	r.expect("Pin", func() (err error) {
		if small, err = b.d.Pin(300); err == nil {
			r.vars["page"] = uintptr(small.Address())
		}
		return err
	}, inside(v, want.pin...)...)
	if mapped, is := r.vars["mapped"]; is {
		r.vars["mapped128"] = mapped + 128
	}
	word := (*uint32)(unsafe.Add(small.Address(), 128))
	r.expect("NewStream", func() error { _, err := b.d.NewStream(device.Outputs); return err }, inside(v, want.stream...)...)
	r.expect("Order", func() error { return b.d.Order(b.caller, b.in) }, inside(v, want.order...)...)
	r.expect("CopyIn", func() error { return b.d.CopyIn(b.in, b.block()) }, inside(v, want.copyIn...)...)
	r.expect("CopyOut", func() error { return b.d.CopyOut(b.out, b.block()) }, inside(v, want.copyOut...)...)
	r.expect("WriteValue", func() error { return b.d.WriteValue(b.in, word, 77) }, inside(v, want.write...)...)
	w, waits := b.d.(device.Waiter)
	if waits != (want.wait != nil) {
		r.t.Fatalf("the runtime is a Waiter: %v", waits)
	}
	if waits {
		r.expect("WaitValue", func() error { return w.WaitValue(b.out, word, 55) }, inside(v, want.wait...)...)
	}
	l := b.d.(device.Launcher)
	r.expect("Identity", func() error {
		id, err := l.Identity()
		if err == nil && !strings.Contains(id, namesInTorch[v.name]) {
			r.t.Errorf("the device is %q", id)
		}
		return err
	}, inside(v, want.identity...)...)
	var memory device.Memory
	r.expect("Allocate", func() (err error) { memory, err = l.Allocate(7000, true); return err }, inside(v, want.allocate...)...)
	r.expect("CopyWithin", func() error { return l.CopyWithin(b.in, memory.Address(), b.data, length) }, inside(v, want.within...)...)
	b.synchronize(b.in)
	r.expect("Release of memory", func() error { memory.Release(); return nil }, inside(v, want.free...)...)
}
