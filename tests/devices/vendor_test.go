package devices

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/internal/device/ascend"
	"sagecomm/internal/device/cambricon"
	"sagecomm/tests/devices/raw"
)

// mover is what the runtimes have in common.
type mover interface {
	device.Runtime
	CopyOut(device.Stream, device.Copy) error
	Order(first, then device.Stream) error
}

// vendor is a runtime, and how a program that uses the vendor's library beside it calls that.
type vendor struct {
	name, library string
	more          []string // libraries of other vendors beside
	devices       func() (int, error)
	open          func(index int) (mover, error)

	begin, setDevice, getDevice string // begin may be empty
	malloc, mallocHost, stream  string
	synchronize, memcpyAsync    string
	toDevice, toHost            uintptr // directions of a copy
}

var vendors = []vendor{
	{
		name: "ascend", library: "libascendcl.so", devices: ascend.Devices,
		open:  func(index int) (mover, error) { return ascend.Open(index) },
		begin: "aclInit", setDevice: "aclrtSetDevice", getDevice: "aclrtGetDevice", malloc: "aclrtMalloc", mallocHost: "aclrtMallocHost",
		stream: "aclrtCreateStream", synchronize: "aclrtSynchronizeStream", memcpyAsync: "aclrtMemcpyAsync", toDevice: 1, toHost: 2,
	},
	{
		name: "cambricon", library: "libcnrt.so", devices: cambricon.Devices,
		open:      func(index int) (mover, error) { return cambricon.Open(index) },
		setDevice: "cnrtSetDevice", getDevice: "cnrtGetDevice", malloc: "cnrtMalloc", mallocHost: "cnrtHostMalloc",
		stream: "cnrtQueueCreate", synchronize: "cnrtQueueSync", memcpyAsync: "cnrtMemcpyAsync_V2", toDevice: 0, toHost: 2,
	},
}

// program is a program that uses a vendor's library. Its calls must succeed.
type program struct {
	t *testing.T
	raw.Library
	v vendor
}

func newProgram(t *testing.T, v vendor) *program {
	t.Helper()
	library, err := raw.Open(v.library)
	require.NoError(t, err)
	return &program{t, library, v}
}

func (p *program) call(name string, arguments ...uintptr) {
	p.t.Helper()
	if rc := p.Call(name, arguments...); rc != 0 {
		p.t.Fatalf("%s%v: %d", name, arguments, rc)
	}
}

// use starts the library and makes a device the current one of this thread.
func (p *program) use(index int) {
	p.t.Helper()
	if p.v.begin != "" {
		p.Call(p.v.begin, 0) // it may have been started
	}
	p.call(p.v.setDevice, uintptr(index))
}

// current returns the device of this thread, -1 if it has none.
func (p *program) current() int {
	out := raw.Memory(8)
	if p.Call(p.v.getDevice, out) != 0 {
		return -1
	}
	return int(raw.Load(out))
}

// made returns what a function writes to its first argument.
func (p *program) made(name string, arguments ...uintptr) uintptr {
	p.t.Helper()
	out := raw.Memory(8)
	p.call(name, append([]uintptr{out}, arguments...)...)
	return raw.Load(out)
}

// plan makes calls of the vendor's functions fail from here on: a rule of the emulator's fault plan, none for an empty call.
func (p *program) plan(rule string) {
	p.t.Helper()
	if strings.HasPrefix(rule, "=") {
		rule = ""
	}
	text := raw.Memory(len(rule) + 1)
	copy(raw.Bytes(text, len(rule)+1), rule)
	p.call("emulator_plan", text)
}

// copy queues a copy.
func (p *program) copy(to, from uintptr, bytes int, direction, stream uintptr) {
	p.t.Helper()
	if p.v.name == "ascend" {
		p.call(p.v.memcpyAsync, to, uintptr(bytes), from, uintptr(bytes), direction, stream)
	} else {
		p.call(p.v.memcpyAsync, to, from, uintptr(bytes), stream, direction)
	}
}

// hostBytes returns pinned memory of a runtime.
func hostBytes(p device.Pinned, n int) []byte { return unsafe.Slice((*byte)(p.Address()), n) }

func wordOf(p device.Pinned, offset int) *uint32 { return (*uint32)(unsafe.Add(p.Address(), offset)) }

// eachVendor runs a test for each vendor.
func eachVendor(t *testing.T, test func(t *testing.T, v vendor)) {
	for _, v := range vendors {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}
