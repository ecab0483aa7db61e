package devices

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/kernels"
	"sagecomm/tests/devices/raw"
	"sagecomm/tests/quick"
)

// builtDriver builds the emulated driver of CUDA once. It reports whether NVIDIA's headers are there.
var builtDriver = sync.OnceValues(func() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, "../../.venv/bin/python", "../emulator/build.py", "cuda").CombinedOutput()
	if strings.Contains(string(output), "there is no library cuda here") {
		return false, nil
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, output)
	}
	return true, err
})

// driverAlone returns a folder with the emulated driver, nothing in the processes of a test.
func driverAlone(t *testing.T) string {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return ""
	}
	at := folder(t)
	there, err := builtDriver()
	require.NoError(t, err)
	if !there {
		t.Skip("the emulated driver is built with NVIDIA's headers, which torch's builds for CUDA bring")
	}
	libraries := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(at, "libcuda.so.1"), filepath.Join(libraries, "libcuda.so.1")))
	return libraries
}

// onCUDA runs a part of a test in a process with the emulated driver.
func onCUDA(t *testing.T, variables []string, body func(t *testing.T, d *cudaBed)) {
	t.Helper()
	isolated(t, driverAlone(t), variables, func(t *testing.T) { body(t, newCUDABed(t)) })
}

// cudaBed is a device with two streams, memory of the device, and as much pinned memory.
type cudaBed struct {
	*cuda.Driver
	t           *testing.T
	library     raw.Library
	first, then device.Stream
	data        uintptr
	host        device.Pinned
}

const cudaBytes = 4 << 20

func newCUDABed(t *testing.T) *cudaBed {
	t.Helper()
	library, err := raw.Open("libcuda.so.1")
	require.NoError(t, err)
	d, err := cuda.Open(used)
	require.NoError(t, err)
	b := &cudaBed{Driver: d, t: t, library: library}
	b.first, err = d.NewStream(device.Inputs)
	require.NoError(t, err)
	b.then, err = d.NewStream(device.Outputs)
	require.NoError(t, err)
	memory, err := d.Allocate(cudaBytes, false)
	require.NoError(t, err)
	b.data = memory.Address()
	b.host, err = d.Pin(cudaBytes)
	require.NoError(t, err)
	return b
}

// copy queues a copy of the first bytes, out of the host or into it.
func (b *cudaBed) copy(s device.Stream, n int, into bool) {
	b.t.Helper()
	c := device.Copy{Host: b.host.Address(), Device: b.data, Bytes: uint64(n)}
	if into {
		require.NoError(b.t, b.CopyIn(s, c))
		return
	}
	require.NoError(b.t, b.CopyOut(s, c))
}

func (b *cudaBed) wait(s device.Stream) {
	b.t.Helper()
	require.NoError(b.t, b.Current(func() error {
		if code := b.library.Call("cuStreamSynchronize", s.Handle); code != 0 {
			return fmt.Errorf("cuStreamSynchronize: %d", code)
		}
		return nil
	}))
}

func (b *cudaBed) reports() string {
	const most = 4096
	at := raw.Memory(most)
	if b.library.Call("emulator_reports") == 0 {
		return ""
	}
	b.library.Call("emulator_report_text", at, most)
	text, _, _ := bytes.Cut(raw.Bytes(at, most), []byte{0})
	return string(text)
}

// layout is where the arrays of a reduction lie in memory: one behind the other, so many bytes behind an aligned address.
type layout struct {
	inputs, count, shift int
	output               int // the input that the output is; -1: it is an array of its own
}

func (l layout) at(i, size int) int { return i*((l.count*size+l.shift+15)/16*16) + l.shift }

// Each reduction of each type has the bits of the kernels for the CPU. The test fails if one instruction of the module is another one.
func TestReductionsOfCUDAHaveTheBitsOfTheCPU(t *testing.T) {
	onCUDA(t, []string{"EMULATOR_SCHEDULE=eager"}, func(t *testing.T, b *cudaBed) {
		inputs, counts := []int{1, 2, 3, 8, 64}, []int{1, 17, 1027}
		if testing.Short() { // the others take seconds
			inputs, counts = []int{1, 3}, []int{17, 1027}
		}
		if quick.Only() {
			inputs, counts = inputs[1:], counts[1:]
		}
		r := rand.New(rand.NewSource(1))
		reductions := 0
		for dtype := range coll.DataTypeCount {
			for op := range coll.ReduceOpCount {
				if coll.Defined(op, dtype) != nil {
					continue
				}
				for _, n := range inputs {
					for _, count := range counts {
						for _, shift := range []int{0, dtype.Size()} {
							for _, output := range slices.Compact([]int{-1, 0, n - 1}) {
								b.compare(r, op, dtype, layout{n, count, shift, output})
								reductions++
							}
						}
					}
				}
				if op == coll.Sum || !quick.Only() {
					b.compare(r, op, dtype, layout{2, 16411, 0, -1}) // threads that reduce several packs
				}
			}
		}
		if reductions < 103*len(inputs)*len(counts)*2*2 {
			t.Errorf("only %d reductions were compared", reductions)
		}
		if text := b.reports(); text != "" {
			t.Error(text)
		}
	})
}

func (b *cudaBed) compare(r *rand.Rand, op coll.ReduceOp, dtype coll.DataType, l layout) {
	b.t.Helper()
	size := dtype.Size()
	all := l.at(l.inputs+1, size)
	memory := hostBytes(b.host, all)
	sources, reduction := make([][]byte, l.inputs), device.Reduction{Type: dtype, Op: op, Count: uint64(l.count)}
	for i := range sources {
		sources[i] = make([]byte, l.count*size)
		fillArray(r, dtype, sources[i])
		copy(memory[l.at(i, size):], sources[i])
		reduction.Inputs = append(reduction.Inputs, b.data+uintptr(l.at(i, size)))
	}
	output := l.at(l.inputs, size)
	if l.output >= 0 {
		output = l.at(l.output, size)
	}
	reduction.Output = b.data + uintptr(output)
	want := make([]byte, l.count*size)
	switch op {
	case coll.Avg:
		reduction.Operand = float64(l.inputs + r.Intn(300)) // of more ranks than inputs
	case coll.PremulSum:
		reduction.Operand = -1.5 // many products lie in the middle between two numbers
		if r.Intn(2) == 0 {
			reduction.Operand = []float64{1.0 / 3, 1e-6, 1 << 12}[r.Intn(3)]
		}
		for i := range sources {
			require.NoError(b.t, kernels.ScaleInto(sources[i], sources[i], dtype, reduction.Operand))
		}
	}
	require.NoError(b.t, kernels.ReduceInto(want, nil, sources, dtype, op, max(1, reduction.Operand)))
	b.copy(b.first, all, false)
	require.NoError(b.t, b.Reduce(b.first, reduction))
	b.copy(b.first, all, true)
	b.wait(b.first)
	got := memory[output : output+l.count*size]
	sameNaN(dtype, want)
	sameNaN(dtype, got)
	for i := 0; i < len(want); i += size {
		if !bytes.Equal(got[i:i+size], want[i:i+size]) {
			b.t.Fatalf("%v of %v, %+v, operand %v, element %d: %x, the CPU has %x", op, dtype, l, reduction.Operand, i/size, got[i:i+size], want[i:i+size])
		}
	}
}

// A floating-point format has its elements in words of so many bytes, and such infinities.
type floats struct {
	bytes    int
	infinity uint64
}

var floatFormats = map[coll.DataType]floats{
	coll.Float16: {2, 0x7c00}, coll.BFloat16: {2, 0x7f80}, coll.Float32: {4, 0x7f800000}, coll.Complex64: {4, 0x7f800000},
	coll.Float64: {8, 0x7ff << 52}, coll.Complex128: {8, 0x7ff << 52},
}

func word(b []byte, n int) uint64 {
	var all [8]byte
	copy(all[:], b[:n])
	return binary.LittleEndian.Uint64(all[:])
}

func setWord(b []byte, n int, w uint64) {
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], w)
	copy(b[:n], all[:])
}

// fillArray fills memory with elements of a type: moderate numbers, random bits, and zeros, subnormal numbers, infinities, NaN or
// the limits of integers.
func fillArray(r *rand.Rand, dtype coll.DataType, b []byte) {
	r.Read(b)
	f, float := floatFormats[dtype]
	n := f.bytes
	if !float {
		n = dtype.Size()
	}
	sign := uint64(1) << (8*n - 1)
	for i := 0; i < len(b); i += n {
		kind := (i/n)%8 + r.Intn(2) // much the same at all inputs, so that few sums have a NaN
		switch {
		case float && kind < 6:
			moderate := math.Float64bits(r.NormFloat64())
			switch {
			case n == 4:
				moderate = uint64(math.Float32bits(float32(math.Float64frombits(moderate))))
			case dtype == coll.BFloat16:
				moderate = uint64(math.Float32bits(float32(math.Float64frombits(moderate))) >> 16)
			case n == 2:
				moderate = word(b[i:], n)&0x83ff | uint64(13+r.Intn(4))<<10
			}
			setWord(b[i:], n, moderate)
		case float && kind == 6:
			special := []uint64{0, 0, 1, 3, f.infinity, f.infinity | 1, f.infinity - 1, f.infinity & -f.infinity}[r.Intn(8)]
			setWord(b[i:], n, word(b[i:], n)&sign|special)
		case !float && kind == 6:
			setWord(b[i:], n, []uint64{0, 1, sign, sign - 1, math.MaxUint64}[r.Intn(5)])
		case !float && kind == 7: // quotients of numbers of half the length are computed another way
			setWord(b[i:], n, word(b[i:], n)>>(4*n))
		case dtype == coll.Bool && kind < 4:
			b[i] &= 1
		}
	}
}

// sameNaN makes one NaN of all, whose signs and payloads are not promised.
func sameNaN(dtype coll.DataType, b []byte) {
	f, float := floatFormats[dtype]
	for i := 0; float && i < len(b); i += f.bytes {
		sign := uint64(1) << (8*f.bytes - 1)
		if word(b[i:], f.bytes)&^sign > f.infinity {
			setWord(b[i:], f.bytes, sign-1)
		}
	}
}

// The checker knows what a kernel reads and writes: each order of a reduction is needed.
func TestAReductionIsOrderedAsACopyIs(t *testing.T) {
	onCUDA(t, []string{"EMULATOR_SCHEDULE=random"}, func(t *testing.T, b *cudaBed) {
		const n = 4096
		clear(hostBytes(b.host, 3*n))
		reduce := func() {
			require.NoError(t, b.Reduce(b.then, device.Reduction{Type: coll.Float32, Op: coll.Sum, Count: n / 4,
				Inputs: []uintptr{b.data, b.data + n}, Output: b.data + 2*n}))
		}
		for _, c := range []struct {
			before, behind bool // the orders that are there
			report         string
		}{
			{true, true, ""},
			{false, true, "reads in [kernel sum_f32"},
			{true, false, "kernel sum_f32"},
		} {
			b.copy(b.first, 2*n, false)
			if c.before {
				require.NoError(t, b.Order(b.first, b.then))
			}
			reduce()
			if c.behind {
				require.NoError(t, b.Order(b.then, b.first))
			}
			b.copy(b.first, 3*n, true)
			b.wait(b.then)
			b.wait(b.first)
			if text := b.reports(); (text != "") != (c.report != "") || !strings.Contains(text, c.report) {
				t.Errorf("%+v: %q", c, text)
			}
			b.library.Call("emulator_reset_reports")
		}
	})
}

// A driver that refuses the kernels is an error of one line. Kernels that the device cannot have are not loaded again, because a compiler may
// take seconds for that; what may go by is tried again.
func TestKernelsThatCUDARefuses(t *testing.T) {
	for fault, c := range map[string]struct {
		want  string
		final bool
	}{
		"cuModuleLoadDataEx@1=#218":  {"cannot load the kernels of reductions on CUDA device 1: CUDA_ERROR_INVALID_PTX", true},
		"cuModuleLoadDataEx@1=#209":  {"cannot load the kernels of reductions on CUDA device 1: error 209 of CUDA", true},
		"cuModuleLoadDataEx@1=#2":    {"cannot load the kernels of reductions on CUDA device 1: CUDA_ERROR_OUT_OF_MEMORY", false},
		"cuModuleLoadDataEx@1=#9999": {"cannot load the kernels of reductions on CUDA device 1: error 9999 of CUDA", false},
		"cuModuleGetFunction@2=#500": {"cannot load the kernels of reductions on CUDA device 1: kernel product_u8: CUDA_ERROR_NOT_FOUND", true},
		"cuLaunchKernel@1=#701":      {"cannot launch kernel sum_f32 for SUM of complex64 on CUDA device 1: ", false},
	} {
		t.Run(strings.NewReplacer("@", "_", "=", "_", "#", "").Replace(fault), func(t *testing.T) {
			onCUDA(t, []string{"EMULATOR_FAULTS=" + fault}, func(t *testing.T, b *cudaBed) {
				sum := device.Reduction{Type: coll.Complex64, Op: coll.Sum, Count: 1, Inputs: []uintptr{b.data}, Output: b.data + 8}
				b.copy(b.first, 8, false)
				err := b.Reduce(b.first, sum)
				require.ErrorContains(t, err, c.want)
				require.NotContains(t, err.Error(), "\n")
				if again := b.Reduce(b.first, sum); c.final {
					require.Equal(t, err, again)
				} else {
					require.NoError(t, again)
				}
				b.wait(b.first)
			})
		})
	}
}

// Memory that a library may use is accessible for each device of the process that can reach it and does not refuse, other memory for its own
// device.
func TestAccessToMemory(t *testing.T) {
	for fault, others := range map[string][2]bool{
		"":                           {true, true},
		"cuDeviceCanAccessPeer@1=#0": {false, true},
		"cuMemSetAccess@3=#801":      {false, true}, // behind those of the bed's memory and of the own device
	} {
		t.Run(strings.NewReplacer("@", "_", "=", "_", "#", "").Replace(fault), func(t *testing.T) {
			onCUDA(t, []string{"EMULATOR_DEVICES=3", "EMULATOR_FAULTS=" + fault}, func(t *testing.T, b *cudaBed) {
				require.Equal(t, 1, used)
				require.Equal(t, [3]bool{false, true, false}, b.accessTo(b.data))
				memory, err := b.Allocate(cudaBytes, true)
				require.NoError(t, err)
				require.Equal(t, [3]bool{others[0], true, others[1]}, b.accessTo(memory.Address()))
				memory.Release()
			})
		})
	}
}

// accessTo returns which devices can use memory.
func (b *cudaBed) accessTo(at uintptr) (devices [3]bool) {
	b.t.Helper()
	flags, location := raw.Memory(8), raw.Memory(8)
	*(*int32)(unsafe.Pointer(&raw.Bytes(location, 4)[0])) = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	for index := range devices {
		*(*int32)(unsafe.Pointer(&raw.Bytes(location+4, 4)[0])) = int32(index)
		require.Zero(b.t, b.library.Call("cuMemGetAccess", flags, location, at))
		devices[index] = raw.Load(flags) == 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	}
	return devices
}
