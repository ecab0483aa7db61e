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
	"sagecomm/internal/device/bridge"
	"sagecomm/internal/engine/staged"
	"sagecomm/tests/devices/framework"
	"sagecomm/tests/devices/raw"
)

var namesInTorch = map[string]string{"ascend": "npu", "cambricon": "mlu"}

// guest is a framework on a device, and the access that the staged engine has to one of its operations.
type guest struct {
	*program
	framework.Framework
	caller, data, source, target uintptr
}

func newGuest(t *testing.T, v vendor) *guest {
	t.Helper()
	g := &guest{program: newProgram(t, v)}
	g.use(used)
	g.caller, g.data = g.made(v.stream), g.made(v.malloc, length, 0)
	g.source, g.target = g.made(v.mallocHost, length), g.made(v.mallocHost, length)
	for i := range raw.Bytes(g.source, length) {
		raw.Bytes(g.source, length)[i] = byte(i * 11)
	}
	var ok bool
	if g.Framework, ok = framework.New(v.library, namesInTorch[v.name], g.caller); !ok {
		t.Fatal("the vendor's library lacks a function")
	}
	return g
}

func (g *guest) access() device.Access {
	g.t.Helper()
	b, err := bridge.New(g.Bridge())
	require.NoError(g.t, err)
	a, err := staged.WithBridge(b, operation(g.caller))
	require.NoError(g.t, err)
	if want := g.v.name + ", device 1, in the framework's streams"; a.Name() != want {
		g.t.Fatalf("the access is %q, expected %q", a.Name(), want)
	}
	return a
}

func (g *guest) must(err error) {
	g.t.Helper()
	require.NoError(g.t, err)
}

// operate carries out an operation, with a value for the words, behind a copy that the framework has only launched, and returns what
// was wrong. The values of later operations are greater.
func (g *guest) operate(a device.Access, memory device.Pinned, in, out device.Stream, value uint32) string {
	g.t.Helper()
	block := device.Copy{Host: unsafe.Add(memory.Address(), words), Device: g.data, Bytes: length}
	g.Copy(g.data, g.source, length, true)
	g.must(a.Fork(in))
	g.must(a.CopyIn(in, block))
	g.must(a.WriteValue(in, wordOf(memory, 0), value))
	w, waits := a.(device.Waiter)
	if waits {
		g.must(w.WaitValue(out, wordOf(memory, 0), value))
		g.must(w.WaitValue(out, wordOf(memory, 128), value))
		g.must(w.CopyOut(out, block))
		g.must(w.WriteValue(out, wordOf(memory, 256), value))
		g.must(a.Join(out))
		g.Wait() // and what the caller does with the output
		g.Copy(g.target, g.data, length, false)
	} else {
		g.must(a.(device.Deferrer).JoinLater(out, device.End{Copies: []device.Copy{block}, Taken: wordOf(memory, 256), Value: value}))
	}
	g.Drain()
	g.call(g.v.synchronize, g.handle(in))
	if !bytes.Equal(hostBytes(memory, words+length)[words:], raw.Bytes(g.source, length)) {
		return "the input is not what the framework has launched in front of the operation"
	}
	if !waits {
		return g.deferred(block, memory, value) + reports(g.Library)
	}
	g.Call("emulator_host_write", uintptr(block.Host), length, raw.Memory(1))
	for i := range length {
		hostBytes(memory, words+length)[words+i] ^= 0xff
	}
	flag := wordOf(memory, 128)
	g.Call("emulator_store", uintptr(unsafe.Pointer(flag)), uintptr(value))
	atomic.StoreUint32(flag, value)
	g.call(g.v.synchronize, g.caller)
	want := bytes.Clone(raw.Bytes(g.source, length))
	for i := range want {
		want[i] ^= 0xff
	}
	if !bytes.Equal(raw.Bytes(g.target, length), want) {
		return "the output is not what the host has computed"
	}
	return reports(g.Library)
}

// handle returns the runtime's handle of a stream of the framework.
func (g *guest) handle(s device.Stream) uintptr {
	b, err := bridge.New(g.Bridge())
	g.must(err)
	h, err := b.Handle(s)
	g.must(err)
	return h
}

// deferred compares what the library has left to the framework.
func (g *guest) deferred(block device.Copy, memory device.Pinned, value uint32) string {
	end, _, ok := g.End()
	if !ok || end.Copies[0] != block || end.Taken != wordOf(memory, 256) || end.Value != value {
		return "the framework was not asked to copy the output"
	}
	return ""
}

// A runtime moves memory in the streams of a framework with a launch queue: behind what the framework has launched, and before what
// it launches later. Several operations use the same streams, so a handle that is kept from one to the next would overtake. The last two
// share an access, in which a fork is the end of a handle.
func TestInStreamsOfAFramework(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, variables := range schedules() {
			t.Run(strings.Join(variables, " "), func(t *testing.T) {
				isolated(t, folder(t), variables, func(t *testing.T) {
					runtime.LockOSThread()
					g := newGuest(t, v)
					first := g.access()
					memory, err := first.Pin(words + length)
					g.must(err)
					in, err := first.NewStream(device.Inputs)
					g.must(err)
					out, err := first.NewStream(device.Outputs)
					g.must(err)
					clear(hostBytes(memory, words+length))
					for round := range uint32(5) {
						a := first
						if round < 3 {
							a = g.access()
						}
						if wrong := g.operate(a, memory, in, out, round+1); wrong != "" {
							t.Fatalf("operation %d: %s", round, wrong)
						}
					}
				})
			})
		}
	})
}

// An operation asks for its access and, three times, for its name.
func TestAllocationsOfAnAccess(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			g := newGuest(t, v)
			g.access()
			table, op := g.Bridge(), operation(g.caller)
			n := testing.AllocsPerRun(100, func() {
				b, err := bridge.New(table)
				g.must(err)
				a, err := staged.WithBridge(b, op)
				g.must(err)
				for range 3 {
					_ = a.Name()
				}
			})
			require.LessOrEqual(t, n, 2.0, "the bridge and the access")
		})
	})
}

// The checker notices a handle that does not come behind what was launched.
func TestAHandleThatWasKept(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			g := newGuest(t, v)
			a := g.access()
			memory, err := a.Pin(words + length)
			g.must(err)
			in, err := a.NewStream(device.Inputs)
			g.must(err)
			out, err := a.NewStream(device.Outputs)
			g.must(err)
			clear(hostBytes(memory, words+length))
			g.KeepsHandles()
			if wrong := g.operate(a, memory, in, out, 1); wrong == "" {
				t.Error("nobody noticed")
			}
		})
	})
}

// Where a framework cannot tell whether the caller's stream is being captured, the vendor's runtime is asked before it is used.
func TestAFrameworkThatDoesNotTellOfCaptures(t *testing.T) {
	isolated(t, folder(t), nil, func(t *testing.T) {
		runtime.LockOSThread()
		g := newGuest(t, vendors[0])
		b, err := bridge.New(g.Bridge())
		require.NoError(t, err)
		g.call("aclmdlRICaptureBegin", g.caller, 2)
		_, err = staged.WithBridge(b, operation(g.caller))
		require.NoError(t, err, "the framework says that the stream is not captured")
		g.MayBeCaptured()
		_, err = staged.WithBridge(b, operation(g.caller))
		require.ErrorIs(t, err, device.ErrCaptured)
		_, err = staged.WithBridge(b, operation(g.made("aclrtCreateStream")))
		require.NoError(t, err)
	})
}

// Where the vendor's library is not there, or the device is one that this library does not know, the framework moves the memory.
func TestAFrameworkWithoutARuntime(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), []string{"EMULATOR_DEVICES=1"}, func(t *testing.T) {
			runtime.LockOSThread()
			p := newProgram(t, v)
			p.use(0)
			for _, name := range []string{"simdev", namesInTorch[v.name]} {
				f, ok := framework.New(v.library, name, p.made(v.stream))
				if !ok {
					continue // the framework here has names of two devices only
				}
				b, err := bridge.New(f.Bridge())
				require.NoError(t, err)
				f.MayBeCaptured()
				a, err := staged.WithBridge(b, operation(0))
				require.NoError(t, err)
				if a != device.Access(b) {
					t.Errorf("%s: device 1 of 1 has the access %q", name, a.Name())
				}
			}
		})
	})
}
