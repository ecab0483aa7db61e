package devices

import (
	"bufio"
	"debug/elf"
	"debug/gosym"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/cuda"
	"sagecomm/tests/devices/raw"
)

// exportsVariable makes the process of a test one that shares memory with another one.
const exportsVariable = "DEVICES_EXPORTS"

// driverBed compares the calls of CUDA's driver with tables whose lines are those of header.call.
type driverBed struct {
	*recording
	h       *header
	library raw.Library
	d       *cuda.Driver
	made    map[string]bool // functions that have been called, by their names in the library

	caller, in, out device.Stream
	data            uintptr // memory of the device
	host            device.Pinned
}

// expect calls a method of the core and compares what it calls. Nothing may have been called since the last time.
func (b *driverBed) expect(what string, method func() error, lines ...string) {
	b.t.Helper()
	require.Empty(b.t, b.calls(), "calls before %s", what)
	var expected []string
	for _, line := range lines {
		expected = append(expected, b.h.call(line))
		name, _, _ := strings.Cut(line, " ")
		b.made[b.h.symbol(name)] = true
	}
	b.recording.expect(what, method, expected...)
}

// own does what a program does beside the core, on the device.
func (b *driverBed) own(f func() error) {
	b.t.Helper()
	require.NoError(b.t, b.d.Current(f))
	b.calls()
}

// call calls a function of the driver for the program.
func (b *driverBed) call(name string, arguments ...uintptr) error {
	if rc := b.library.Call(name, arguments...); rc != 0 {
		return fmt.Errorf("%s: %d", name, rc)
	}
	return nil
}

// plan makes the first call of a function fail from here on: CUDA_ERROR_OUT_OF_MEMORY, or another number of cuda.h.
func (b *driverBed) plan(function, code string) {
	b.t.Helper()
	text := append([]byte(fmt.Sprintf("%s@1=#%d", function, b.h.numbers[code])), 0)
	at := raw.Memory(len(text))
	copy(raw.Bytes(at, len(text)), text)
	require.Zero(b.t, b.library.Call("emulator_plan", at))
}

// withContext puts the calls by which the core makes its context the current one, and gives the thread its own one back, around others.
func withContext(calls ...string) []string {
	return slices.Concat([]string{"cuCtxPushCurrent ctx=context"}, calls, []string{"cuCtxPopCurrent pctx=*"})
}

// relaxed also lets the thread call what captures of other threads forbid.
func relaxed(calls ...string) []string {
	const exchange = "cuThreadExchangeStreamCaptureMode mode=*"
	return slices.Concat(
		[]string{exchange, "CUstreamCaptureMode CU_STREAM_CAPTURE_MODE_RELAXED", "-> CU_STREAM_CAPTURE_MODE_GLOBAL"},
		withContext(calls...),
		[]string{exchange, "CUstreamCaptureMode CU_STREAM_CAPTURE_MODE_GLOBAL", "-> CU_STREAM_CAPTURE_MODE_RELAXED"})
}

const (
	priorities = "cuCtxGetStreamPriorityRange leastPriority=* greatestPriority=*"
	ofDevice1  = "cuDeviceGet device=* ordinal=1"
	namesError = "cuGetErrorName error=CUDA_ERROR_OUT_OF_MEMORY pStr=*"
)

// streamCalls are the calls that make a stream. The greatest priority is the smallest number.
func streamCalls(name string, priority int) []string {
	return relaxed(priorities, "-> 0 -5", fmt.Sprint("cuStreamCreateWithPriority phStream=* flags=CU_STREAM_NON_BLOCKING priority=", priority), "-> "+name)
}

// orderCalls are the calls that make a stream wait for another one.
func orderCalls(event, first, then string) []string {
	return withContext("cuEventCreate phEvent=* Flags=CU_EVENT_DISABLE_TIMING", "-> "+event, "cuEventRecord hEvent="+event+" hStream="+first,
		"cuStreamWaitEvent hStream="+then+" hEvent="+event+" Flags=CU_EVENT_WAIT_DEFAULT", "cuEventDestroy hEvent="+event)
}

// start opens the device, which makes streams ahead and tries one.
func (b *driverBed) start() {
	b.expect("Locate before the start", func() error { _, _, err := cuda.Locate(4096); return err }, locateCalls("4096")...)
	b.expect("Devices", func() error { _, err := cuda.Devices(); return err }, "cuInit Flags=0", "cuDeviceGetCount count=*")
	calls := slices.Concat([]string{ofDevice1, "-> 1", "cuDevicePrimaryCtxRetain pctx=* dev=1", "-> context"},
		relaxed("cuMemHostAlloc pp=* bytesize=128 Flags=CU_MEMHOSTALLOC_PORTABLE", "-> probe"))
	for i := range 16 {
		calls = slices.Concat(calls, streamCalls(fmt.Sprint("in", i), -5), streamCalls(fmt.Sprint("out", i), -4))
	}
	calls = slices.Concat(calls, withContext(priorities, "-> 0 -5"),
		withContext(ofDevice1, "-> 1", "cuDeviceGetAttribute pi=* attrib=CU_DEVICE_ATTRIBUTE_MPS_ENABLED dev=1"))
	for i := range 3 { // CUDA_DEVICE_MAX_CONNECTIONS
		calls = slices.Concat(calls, streamCalls(fmt.Sprint("recv", i), -3))
	}
	calls = slices.Concat(calls, withContext("cuStreamWriteValue32 stream=in0 addr=probe value=1 flags=CU_STREAM_WRITE_VALUE_DEFAULT"),
		withContext("cuStreamWaitValue32 stream=in0 addr=probe value=1 flags=CU_STREAM_WAIT_VALUE_GEQ"))
	b.expect("Open", func() (err error) { b.d, err = cuda.Open(used); return err }, calls...)
	b.expect("NewStream", func() (err error) {
		if b.in, err = b.d.NewStream(device.Inputs); err == nil {
			b.out, err = b.d.NewStream(device.Outputs)
		}
		return err
	})
	b.own(func() error {
		at := raw.Memory(8)
		err := b.call("cuStreamCreate", at, 1)
		b.caller = device.Stream{Handle: raw.Load(at)}
		b.vars["caller"] = b.caller.Handle
		return err
	})
}

func locateCalls(pointer string) []string {
	return []string{"cuPointerGetAttributes numAttributes=2 attributes=* data=* ptr=" + pointer,
		"CUpointer_attribute CU_POINTER_ATTRIBUTE_MEMORY_TYPE", "CUpointer_attribute CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"}
}

// mapCalls are the calls that give memory an address.
func mapCalls(memory, at string) []string {
	return []string{"cuMemAddressReserve ptr=* size=2097152 alignment=0 addr=0 flags=0", "-> " + at,
		"cuMemMap ptr=" + at + " size=2097152 offset=0 handle=" + memory + " flags=0", accessCall(at), accessOf(1)}
}

func accessCall(at string) string { return "cuMemSetAccess ptr=" + at + " size=2097152 desc=* count=1" }

func accessOf(device int) string {
	return fmt.Sprintf("CUmemAccessDesc location.type=CU_MEM_LOCATION_TYPE_DEVICE location.id=%d flags=CU_MEM_ACCESS_FLAGS_PROT_READWRITE", device)
}

// createCalls are the calls that allocate memory apart from its address.
func createCalls(memory, handles string) []string {
	properties := "CUmemAllocationProp type=CU_MEM_ALLOCATION_TYPE_PINNED requestedHandleTypes=" + handles +
		" location.type=CU_MEM_LOCATION_TYPE_DEVICE location.id=1 win32HandleMetaData=0" +
		" allocFlags.compressionType=CU_MEM_ALLOCATION_COMP_NONE allocFlags.gpuDirectRDMACapable=0 allocFlags.usage=0"
	return []string{"cuMemGetAllocationGranularity granularity=* prop=* option=CU_MEM_ALLOC_GRANULARITY_MINIMUM", properties, "-> 2097152",
		"cuMemCreate handle=* size=2097152 prop=* flags=0", properties, "-> " + memory}
}

func hasCalls(attribute string) []string {
	return []string{ofDevice1, "-> 1", "cuDeviceGetAttribute pi=* attrib=" + attribute + " dev=1", ofDevice1, "-> 1"}
}

const (
	hasMaps  = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
	hasFiles = "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"
	noHandle = "CU_MEM_HANDLE_TYPE_NONE"
	fileType = "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
)

func unmapCalls(at string) []string {
	return relaxed("cuMemUnmap ptr="+at+" size=2097152", "cuMemAddressFree ptr="+at+" size=2097152")
}

// memory allocates: bytes are rounded up to the granularity, and the other device that can reach the memory gets access, too.
func (b *driverBed) memory() {
	var memory device.Memory
	b.expect("Allocate", func() (err error) {
		if memory, err = b.d.Allocate(7000, true); err == nil {
			b.data = memory.Address()
		}
		return err
	}, relaxed(slices.Concat(hasCalls(hasMaps), createCalls("memory", noHandle), mapCalls("memory", "data"), []string{"cuMemRelease handle=memory",
		ofDevice1, "-> 1", "cuDeviceGetCount count=*", "cuDeviceGet device=* ordinal=0", "-> 0", "cuDeviceCanAccessPeer canAccessPeer=* dev=0 peerDev=1",
		ofDevice1, "-> 1", accessCall("data"), accessOf(0)})...)...)
	require.Equal(b.t, b.vars["data"], b.data)
	b.expect("Pin", func() (err error) { b.host, err = b.d.Pin(8192); return err },
		relaxed("cuMemHostAlloc pp=* bytesize=8192 Flags=CU_MEMHOSTALLOC_PORTABLE", "-> host")...)
	require.Equal(b.t, b.vars["host"], uintptr(b.host.Address()))
	b.expect("Locate", func() error {
		index, found, err := cuda.Locate(b.data)
		require.True(b.t, found)
		require.Equal(b.t, used, index)
		return err
	}, locateCalls("data")...)
	b.plan("cuPointerGetAttributes", "CUDA_ERROR_INVALID_CONTEXT")
	b.expect("Locate in the context that is there", func() error { _, _, err := cuda.Locate(b.data); return err },
		slices.Concat(locateCalls("data"), []string{"cuDeviceGetCount count=*", "cuDeviceGet device=* ordinal=0", "-> 0",
			"cuDevicePrimaryCtxGetState dev=0 flags=* active=*", ofDevice1, "-> 1", "cuDevicePrimaryCtxGetState dev=1 flags=* active=*"},
			withContext(locateCalls("data")...))...)

	other, err := b.d.Allocate(7000, false)
	require.NoError(b.t, err)
	b.calls()
	b.vars["other"] = other.Address()
	b.expect("Release", func() error { other.Release(); return nil }, unmapCalls("other")...)
	b.plan("cuMemSetAccess", "CUDA_ERROR_OUT_OF_MEMORY")
	b.expect("Allocate without access", func() error {
		_, err := b.d.Allocate(7000, false)
		require.ErrorContains(b.t, err, "CUDA_ERROR_OUT_OF_MEMORY")
		return nil
	}, relaxed(slices.Concat(hasCalls(hasMaps), createCalls("refused", noHandle), mapCalls("refused", "at")[:4],
		[]string{"cuMemUnmap ptr=at size=2097152", "cuMemAddressFree ptr=at size=2097152", namesError, "cuMemRelease handle=refused"})...)...)
}

// operations queues what operations are made of. Lengths are bytes.
func (b *driverBed) operations() {
	var d *cuda.Driver
	b.expect("New", func() (err error) {
		d, err = cuda.New(coll.Op{Device: coll.Device{Type: coll.CUDA, Index: used}, Stream: b.caller.Handle, Ordering: coll.InStream})
		return err
	}, withContext("cuStreamIsCapturing hStream=caller captureStatus=*")...)
	b.expect("Fork", func() error { return d.Fork(b.in) }, orderCalls("event1", "caller", "in0")...)
	b.expect("Join", func() error { return d.Join(b.out) }, orderCalls("event2", "out0", "caller")...)
	b.expect("Order", func() error { return b.d.Order(b.in, b.out) }, orderCalls("event3", "in0", "out0")...)
	block := device.Copy{Host: b.host.Address(), Device: b.data, Bytes: 5000}
	b.expect("CopyIn", func() error { return b.d.CopyIn(b.in, block) },
		withContext("cuMemcpyDtoHAsync dstHost=host srcDevice=data ByteCount=5000 hStream=in0")...)
	b.expect("CopyOut", func() error { return b.d.CopyOut(b.out, block) },
		withContext("cuMemcpyHtoDAsync dstDevice=data srcHost=host ByteCount=5000 hStream=out0")...)
	b.vars["second"] = b.data + 8192
	b.expect("CopyWithin", func() error { return b.d.CopyWithin(b.in, b.data+8192, b.data, 5000) },
		withContext("cuMemcpyDtoDAsync dstDevice=second srcDevice=data ByteCount=5000 hStream=in0")...)
	word := (*uint32)(unsafe.Add(b.host.Address(), 128))
	b.vars["word"] = b.vars["host"] + 128
	b.expect("WriteValue", func() error { return b.d.WriteValue(b.in, word, 77) },
		withContext("cuStreamWriteValue32 stream=in0 addr=word value=77 flags=CU_STREAM_WRITE_VALUE_DEFAULT")...)
	b.expect("WaitValue", func() error { return b.d.WaitValue(b.out, word, 55) },
		withContext("cuStreamWaitValue32 stream=out0 addr=word value=55 flags=CU_STREAM_WAIT_VALUE_GEQ")...)
	b.expect("Signal", func() error { return b.d.Signal(b.in, b.vars["word"], 78) },
		withContext("cuStreamWriteValue32 stream=in0 addr=word value=78 flags=CU_STREAM_WRITE_VALUE_DEFAULT")...)
	b.expect("Await", func() error { return b.d.Await(b.out, b.vars["word"], 56) },
		withContext("cuStreamWaitValue32 stream=out0 addr=word value=56 flags=CU_STREAM_WAIT_VALUE_GEQ")...)
	b.plan("cuMemHostAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
	b.expect("Pin without memory", func() error {
		_, err := b.d.Pin(300)
		require.ErrorContains(b.t, err, "CUDA_ERROR_OUT_OF_MEMORY")
		return nil
	}, relaxed("cuMemHostAlloc pp=* bytesize=300 Flags=CU_MEMHOSTALLOC_PORTABLE", namesError)...)
}

// kernels loads the kernels of reductions, and launches one.
func (b *driverBed) kernels() {
	ptx, err := os.ReadFile("../../internal/device/cuda/kernels/reduce.ptx")
	require.NoError(b.t, err)
	load := func(module string) []string {
		return []string{ofDevice1, "-> 1", "cuDeviceGetAttribute pi=* attrib=CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT dev=1",
			"cuModuleLoadDataEx module=* image=* numOptions=2 options=* optionValues=*", "CUjit_option CU_JIT_ERROR_LOG_BUFFER *",
			"CUjit_option CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES 2048", "-> " + module}
	}
	b.plan("cuModuleGetFunction", "CUDA_ERROR_OUT_OF_MEMORY")
	b.expect("LoadKernels without memory", func() error {
		require.ErrorContains(b.t, b.d.LoadKernels(), "CUDA_ERROR_OUT_OF_MEMORY")
		return nil
	}, relaxed(slices.Concat(load("module1"), []string{"cuModuleGetFunction hfunc=* hmod=module1 name=*", namesError, "cuModuleUnload hmod=module1"})...)...)
	calls := load("module2")
	for _, kernel := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)`).FindAllStringSubmatch(string(ptx), -1) {
		calls = append(calls, "cuModuleGetFunction hfunc=* hmod=module2 name=*", "text "+kernel[1], "-> "+kernel[1])
	}
	b.expect("LoadKernels", b.d.LoadKernels, relaxed(calls...)...)

	b.vars["input1"], b.vars["sum"] = b.data+0x10000, b.data+0x20000
	reduction := device.Reduction{Type: coll.Float32, Op: coll.Avg, Inputs: []uintptr{b.data, b.vars["input1"]}, Output: b.vars["sum"],
		Count: 4102, Operand: 2} // 1,025 packs, for three blocks
	b.expect("Reduce", func() error { return b.d.Reduce(b.in, reduction) }, withContext(
		"cuLaunchKernel f=avg_f32 gridDimX=3 gridDimY=1 gridDimZ=1 blockDimX=512 blockDimY=1 blockDimZ=1 sharedMemBytes=0 hStream=in0 kernelParams=* extra=0",
		"kernelParam data input1"+strings.Repeat(" 0", 62), "kernelParam sum", "kernelParam 4102", "kernelParam 1025", "kernelParam 2",
		"kernelParam 4611686018427387904")...) // the bits of 2.0
}

// sharing shares memory with other processes, and uses that of others and that of the host.
func (b *driverBed) sharing() {
	b.expect("Identity", func() error { _, err := b.d.Identity(); return err }, withContext(ofDevice1, "-> 1", "cuDeviceGetUuid uuid=* dev=1")...)
	b.expect("Reaches", func() error { _, err := b.d.Reaches(); return err }, withContext("cuDeviceGetCount count=*", ofDevice1, "-> 1",
		"cuDeviceGet device=* ordinal=0", "-> 0", "cuDeviceCanAccessPeer canAccessPeer=* dev=1 peerDev=0", "cuDeviceGetUuid uuid=* dev=0",
		ofDevice1, "-> 1", "cuDeviceGetUuid uuid=* dev=1")...)

	var memory device.Memory
	var shared device.Shared
	b.expect("Share by a handle", func() (err error) { memory, shared, err = b.d.Share(7000, device.ByHandle); return err },
		slices.Concat(relaxed("cuMemAlloc dptr=* bytesize=7000", "-> shared"), relaxed(
			"cuPointerGetAttribute data=* attribute=CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ptr=shared",
			"cuMemGetAddressRange pbase=* psize=0 dptr=shared", "-> base", "cuIpcGetMemHandle pHandle=* dptr=base", "-> own"))...)
	require.Equal(b.t, fingerprint(shared.Handle), b.vars["own"])
	b.expect("Release of memory with a handle", func() error { memory.Release(); return nil }, relaxed("cuMemFree dptr=shared")...)
	of, stop := exporter(b.t)
	b.vars["theirs"] = fingerprint(of)
	b.expect("OpenShared by a handle", func() (err error) {
		memory, err = b.d.OpenShared(device.Shared{Handle: of}, device.ByHandle)
		return err
	}, relaxed("cuIpcOpenMemHandle pdptr=* handle=theirs Flags=CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", "-> imported")...)
	b.expect("Release of memory of a handle", func() error { memory.Release(); return nil }, relaxed("cuIpcCloseMemHandle dptr=imported")...)
	stop()

	b.expect("Share by a file", func() (err error) { memory, shared, err = b.d.Share(7000, device.ByFile); return err },
		relaxed(slices.Concat(hasCalls(hasFiles), createCalls("filed", fileType),
			[]string{"cuMemExportToShareableHandle shareableHandle=* handle=filed handleType=" + fileType + " flags=0", "-> file"},
			mapCalls("filed", "filedAt"), []string{"cuMemRelease handle=filed"})...)...)
	require.Equal(b.t, b.vars["file"], uintptr(shared.File))
	var opened device.Memory
	b.expect("OpenShared by a file", func() (err error) { opened, err = b.d.OpenShared(shared, device.ByFile); return err },
		relaxed(slices.Concat(hasCalls(hasFiles), []string{"cuMemImportFromShareableHandle handle=* osHandle=file shHandleType=" + fileType, "-> read"},
			mapCalls("read", "readAt"), []string{"cuMemRelease handle=read"})...)...)
	require.NoError(b.t, unix.Close(shared.File))
	b.expect("Release of memory of a file", func() error { opened.Release(); return nil }, unmapCalls("readAt")...)
	b.expect("Release of memory with a file", func() error { memory.Release(); return nil }, unmapCalls("filedAt")...)

	page, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(b.t, err)
	b.vars["page"] = uintptr(unsafe.Pointer(&page[0]))
	b.expect("Register", func() error { return b.d.Register(page) },
		relaxed("cuMemHostRegister p=page bytesize=8192 Flags=CU_MEMHOSTREGISTER_PORTABLE|CU_MEMHOSTREGISTER_DEVICEMAP")...)
	b.expect("AddressOf", func() error { _, err := b.d.AddressOf(page); return err }, withContext("cuMemHostGetDevicePointer pdptr=* p=page Flags=0", "-> page")...)
}

// captures asks about a capture, and makes its graph tell its end.
func (b *driverBed) captures() {
	asks := "cuStreamGetCaptureInfo_v2 hStream=caller captureStatus_out=* id_out=* graph_out=0 dependencies_out=0 numDependencies_out=0"
	b.expect("CaptureOf", func() error { _, err := b.d.CaptureOf(b.caller); return err }, withContext(asks)...)
	b.own(func() error {
		return b.call("cuStreamBeginCapture_v2", b.caller.Handle, uintptr(b.h.numbers["CU_STREAM_CAPTURE_MODE_RELAXED"]))
	})
	var mark device.Mark
	b.expect("NewMark", func() (err error) { mark, err = b.d.NewMark(); return err },
		withContext("cuEventCreate phEvent=* Flags=CU_EVENT_DISABLE_TIMING", "-> mark")...)
	b.expect("Set", func() error { return mark.Set(b.caller) }, withContext("cuEventRecord hEvent=mark hStream=caller")...)
	b.expect("Follow", func() error { return mark.Follow(b.out) },
		withContext("cuStreamWaitEvent hStream=out0 hEvent=mark Flags=CU_EVENT_WAIT_DEFAULT")...)
	b.own(func() error { return b.d.Order(b.out, b.caller) }) // else the capture does not end
	count := b.d.NewGraphCount()
	add := func(object string) []string {
		return []string{"cuStreamGetCaptureInfo_v2 hStream=caller captureStatus_out=* id_out=0 graph_out=* dependencies_out=0 numDependencies_out=0",
			"-> graph", "cuUserObjectCreate object_out=* ptr=?references destroy=?destroy initialRefcount=1 flags=CU_USER_OBJECT_NO_DESTRUCTOR_SYNC", "-> " + object,
			"cuGraphRetainUserObject graph=graph object=" + object + " count=1 flags=CU_GRAPH_USER_OBJECT_MOVE"}
	}
	b.expect("Add", func() error { return count.Add(b.caller) }, withContext(add("object1")...)...)
	require.Equal(b.t, 1, count.Live())
	b.plan("cuGraphRetainUserObject", "CUDA_ERROR_OUT_OF_MEMORY")
	b.expect("Add without memory", func() error {
		require.ErrorContains(b.t, count.Add(b.caller), "CUDA_ERROR_OUT_OF_MEMORY")
		return nil
	}, withContext(append(add("object2"), "cuUserObjectRelease object=object2 count=1", namesError)...)...)
	b.own(func() error { return b.call("cuStreamEndCapture", b.caller.Handle, raw.Memory(8)) })
}

// fingerprint returns the number by which the emulated driver writes a handle of IPC down.
func fingerprint(handle []byte) uintptr {
	hash := fnv.New64a()
	_, _ = hash.Write(handle)
	return uintptr(hash.Sum64())
}

// exporter starts a process that shares memory, and returns the handle of that memory.
func exporter(t *testing.T) (handle []byte, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), exportsVariable+"=1", "EMULATOR_CALLS=/dev/null")
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var all strings.Builder
	for lines := bufio.NewScanner(output); handle == nil && lines.Scan(); {
		fmt.Fprintln(&all, lines.Text())
		if text, is := strings.CutPrefix(lines.Text(), "handle "); is {
			handle, err = hex.DecodeString(text)
			require.NoError(t, err)
		}
	}
	require.NotNil(t, handle, all.String())
	return handle, func() {
		require.NoError(t, input.Close())
		_, _ = io.Copy(io.Discard, output)
		require.NoError(t, cmd.Wait())
	}
}

// exports shares memory until its input ends.
func exports(t *testing.T) {
	d, err := cuda.Open(used)
	require.NoError(t, err)
	_, s, err := d.Share(7000, device.ByHandle)
	require.NoError(t, err)
	fmt.Printf("handle %x\n", s.Handle)
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
}

// Each call of the core has the arguments that its line has, in the order of cuda.h. There is a line for each function that the core can
// call, and the core makes each call that has a line.
func TestArgumentsOfCUDA(t *testing.T) {
	libraries := driverAlone(t)
	isolated(t, libraries, []string{"EMULATOR_CALLS=" + filepath.Join(t.TempDir(), "calls"), "CUDA_DEVICE_MAX_CONNECTIONS=3"}, func(t *testing.T) {
		if os.Getenv(exportsVariable) != "" {
			exports(t)
			return
		}
		library, err := raw.Open("libcuda.so.1")
		require.NoError(t, err)
		path := os.Getenv("EMULATOR_CALLS")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		b := &driverBed{recording: &recording{t: t, path: path, vars: map[string]uintptr{}}, h: headerOfCUDA(t), library: library, made: map[string]bool{}}
		b.start()
		b.memory()
		b.operations()
		b.kernels()
		b.sharing()
		b.captures()
		for name := range callsOfCore(t) {
			require.True(t, b.made[b.h.symbol(name)], "the core can call %s, which has no line here", name)
		}
	})
}

// callsOfCore returns the functions of CUDA's driver that the core can call: those that this program has of package cu, since the linker
// keeps no other ones, and those that package cuda calls in C.
func callsOfCore(t *testing.T) map[string]bool {
	t.Helper()
	calls := map[string]bool{}
	own, err := os.Executable()
	require.NoError(t, err)
	file, err := elf.Open(own)
	require.NoError(t, err)
	lines, err := file.Section(".gopclntab").Data()
	require.NoError(t, err)
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, file.Section(".text").Addr))
	require.NoError(t, err)
	for _, f := range table.Funcs {
		if name, is := strings.CutPrefix(f.Name, "gorgonia.org/cu._Cfunc_"); is && strings.HasPrefix(name, "cu") {
			calls[name] = true
		}
	}
	require.Contains(t, calls, "cuMemcpyDtoHAsync")
	sources, err := filepath.Glob("../../internal/device/cuda/*.go")
	require.NoError(t, err)
	called := regexp.MustCompile(`\b(cu[A-Z]\w*)\(`)
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if of, is := n.X.(*ast.Ident); is && of.Name == "C" && strings.HasPrefix(n.Sel.Name, "cu") && called.MatchString(n.Sel.Name+"(") {
					calls[n.Sel.Name] = true
				}
			case *ast.GenDecl:
				if n.Tok == token.IMPORT && n.Doc != nil {
					for _, found := range called.FindAllStringSubmatch(n.Doc.Text(), -1) {
						calls[found[1]] = true
					}
				}
			}
			return true
		})
	}
	return calls
}
