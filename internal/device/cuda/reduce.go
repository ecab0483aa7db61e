//go:build cuda

package cuda

/*
#include <cuda.h>
#include <string.h>

// The first parameter of a kernel, kernels/reduce.cu.
struct inputs {
  CUdeviceptr at[64];
};

// The launch of package cu takes 8 bytes for each parameter, which the first one and `inputs` are not.
static CUresult launch(CUfunction kernel, CUstream stream, unsigned blocks, unsigned threads, const CUdeviceptr *in, unsigned inputs,
                       CUdeviceptr out, unsigned long long count, unsigned long long packs, double operand) {
  struct inputs all;
  memset(&all, 0, sizeof all);
  memcpy(all.at, in, inputs * sizeof *in);
  void *parameters[] = {&all, &out, &count, &packs, &inputs, &operand};
  return cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

// Compiles a text for the device of the current context. Where the driver refuses it, log has the reason.
static CUresult load(CUmodule *module, const char *text, char *log, size_t size) {
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)size};
  return cuModuleLoadDataEx(module, text, 2, options, values);
}
*/
import "C"

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/lazylink"
)

var _ device.Reducer = (*Driver)(nil)

//go:embed kernels/reduce.ptx
var reducePTX string

const (
	kernelPrefix = ".visible .entry " // of the line that begins a kernel
	logBytes     = 2048
	packBytes    = 16  // of the longest load
	blockThreads = 512 // the bound that the kernels are compiled for

	// A reduction waits for memory and hardly computes. A quarter of the multiprocessors, and no more blocks than these, leave the
	// rest to what the program and other ranks run on the device.
	deviceShare = 4
	maxBlocks   = 32
)

// reductions are the kernels of a device.
type reductions struct {
	kernels map[string]C.CUfunction
	blocks  uint64 // the most of a launch
	never   error  // why the device cannot have them
}

// loaded has the kernels by index of the device; the process keeps them, as it keeps contexts.
var loaded device.Once[int, *reductions]

// finalError is an error that comes again: it lies in the kernels or in the driver. To compile them in vain takes as long, for each group.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// finalIf returns the error of a result, which is final for some of them.
func finalIf(rc C.CUresult) error {
	err := failed(rc)
	switch rc {
	case C.CUDA_ERROR_INVALID_PTX, C.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, C.CUDA_ERROR_NO_BINARY_FOR_GPU, C.CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
		C.CUDA_ERROR_NOT_FOUND:
		return finalError{err}
	}
	return err
}

// LoadKernels implements device.Reducer.
func (d *Driver) LoadKernels() error {
	_, err := d.reductions()
	return err
}

// reductions returns the kernels of the device, which the first call loads.
func (d *Driver) reductions() (*reductions, error) {
	known, ok, err := loaded.Known(d.index)
	if !ok {
		known, err = loaded.Get(d.index, d.alone().tryReductions)
	}
	if err != nil {
		return nil, err
	}
	return known, known.never
}

func (d *Driver) tryReductions() (*reductions, error) {
	made, err := d.loadReductions()
	if errors.As(err, new(finalError)) {
		return &reductions{never: err}, nil
	}
	return made, err
}

func (d *Driver) loadReductions() (*reductions, error) {
	what := fmt.Sprintf("cannot load the kernels of reductions on CUDA device %d", d.index)
	for _, name := range []string{"cuModuleLoadDataEx", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel", "cuDeviceGetAttribute"} {
		if !lazylink.CUDAHas(name) {
			return nil, finalError{fmt.Errorf("%s: the CUDA driver has no %s", what, name)}
		}
	}
	made := &reductions{kernels: map[string]C.CUfunction{}}
	if err := d.doRelaxed(what, func() error { return made.load(d.index) }); err != nil {
		return nil, err
	}
	return made, nil
}

// load fills r in. All kernels are looked up at once, because a driver may load a kernel when it is looked up.
// Requires: the context of the device is current.
func (r *reductions) load(index int) error {
	of, err := cu.GetDevice(index)
	if err != nil {
		return err
	}
	var multiprocessors C.int
	err = failed(C.cuDeviceGetAttribute(&multiprocessors, C.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, C.CUdevice(of)))
	if err != nil {
		return err
	}
	r.blocks = min(maxBlocks, max(1, uint64(multiprocessors)/deviceShare))
	text := append([]byte(reducePTX), 0)
	var log [logBytes]C.char
	var module C.CUmodule
	if err := finalIf(C.load(&module, (*C.char)(unsafe.Pointer(&text[0])), &log[0], logBytes)); err != nil {
		if why := strings.Join(strings.Fields(C.GoString(&log[0])), " "); why != "" {
			err = fmt.Errorf("%w: %s", err, why)
		}
		return err
	}
	for line := range strings.Lines(reducePTX) {
		name, ok := strings.CutPrefix(line, kernelPrefix)
		if !ok {
			continue
		}
		name = strings.TrimRight(name, "(\n")
		c := append([]byte(name), 0)
		var kernel C.CUfunction
		if err := finalIf(C.cuModuleGetFunction(&kernel, module, (*C.char)(unsafe.Pointer(&c[0])))); err != nil {
			C.cuModuleUnload(module)
			return fmt.Errorf("kernel %s: %w", name, err)
		}
		r.kernels[name] = kernel
	}
	return nil
}

// formats are the names of types in those of kernels. Integers have one without a sign as well, complex numbers that of their parts.
var formats = [coll.DataTypeCount]struct{ name, unsigned, part string }{
	coll.Int8:       {name: "s8", unsigned: "u8"},
	coll.Int16:      {name: "s16", unsigned: "u16"},
	coll.Int32:      {name: "s32", unsigned: "u32"},
	coll.Int64:      {name: "s64", unsigned: "u64"},
	coll.Uint8:      {name: "u8", unsigned: "u8"},
	coll.Uint16:     {name: "u16", unsigned: "u16"},
	coll.Uint32:     {name: "u32", unsigned: "u32"},
	coll.Uint64:     {name: "u64", unsigned: "u64"},
	coll.Bool:       {name: "bool"},
	coll.Float16:    {name: "f16"},
	coll.BFloat16:   {name: "bf16"},
	coll.Float32:    {name: "f32"},
	coll.Float64:    {name: "f64"},
	coll.Complex64:  {name: "c64", part: "f32"},
	coll.Complex128: {name: "c128", part: "f64"},
}

// ofBools are the reductions of bool by the one that its kernel is named after.
var ofBools = map[coll.ReduceOp]coll.ReduceOp{coll.Sum: coll.BOr, coll.Max: coll.BOr, coll.Product: coll.BAnd, coll.Min: coll.BAnd}

// kernelOf returns the kernel of a reduction that is defined for the type, and how many of the kernel's elements one of the type is.
func kernelOf(op coll.ReduceOp, t coll.DataType) (name string, parts uint64) {
	name, parts = formats[t].name, 1
	switch {
	case t == coll.Bool:
		if other, ok := ofBools[op]; ok {
			op = other
		}
	case formats[t].part != "" && op != coll.Product:
		name, parts = formats[t].part, 2
	case formats[t].unsigned != "" && op != coll.Avg && op != coll.Min && op != coll.Max:
		name = formats[t].unsigned
	}
	return strings.ToLower(op.String()) + "_" + name, parts
}

// check returns why a reduction cannot be done.
func check(r device.Reduction) error {
	if err := coll.Defined(r.Op, r.Type); err != nil {
		return err
	}
	if len(r.Inputs) == 0 || len(r.Inputs) > device.MaxInputs {
		return fmt.Errorf("%v of %v: %d inputs, expected 1 to %d", r.Op, r.Type, len(r.Inputs), device.MaxInputs)
	}
	if r.Op == coll.Avg && !(r.Operand >= 1 && r.Operand <= math.MaxInt32 && r.Operand == math.Trunc(r.Operand)) {
		return fmt.Errorf("%v of %v: divisor %v, expected a whole number from 1 to %d", r.Op, r.Type, r.Operand, math.MaxInt32)
	}
	size := uintptr(r.Type.Size())
	bytes := uintptr(r.Count) * size
	for i, in := range append([]uintptr{r.Output}, r.Inputs...) {
		if in%size != 0 {
			return fmt.Errorf("%v of %v: address %#x is not aligned to %d bytes", r.Op, r.Type, in, size)
		}
		if i > 0 && in != r.Output && in < r.Output+bytes && r.Output < in+bytes {
			return fmt.Errorf("%v of %v: the output overlaps a part of input %d", r.Op, r.Type, i-1)
		}
	}
	return nil
}

// Reduce implements device.Reducer.
func (d *Driver) Reduce(s device.Stream, r device.Reduction) error {
	if err := check(r); err != nil {
		return fmt.Errorf("cannot reduce on CUDA device %d: %w", d.index, err)
	}
	if r.Count == 0 {
		return nil
	}
	all, err := d.reductions()
	if err != nil {
		return err
	}
	name, parts := kernelOf(r.Op, r.Type)
	kernel, ok := all.kernels[name]
	if !ok {
		return fmt.Errorf("internal error: the module of reductions has no kernel %s for %v of %v; please report this", name, r.Op, r.Type)
	}
	count, per := r.Count*parts, packBytes*parts/uint64(r.Type.Size())
	packs, misaligned := count/per, r.Output
	for _, in := range r.Inputs {
		misaligned |= in
	}
	if misaligned%packBytes != 0 {
		packs = 0
	}
	blocks := min(all.blocks, (max(packs, count-packs*per)+blockThreads-1)/blockThreads)
	return d.do(fmt.Sprintf("cannot launch kernel %s for %v of %v on CUDA device %d", name, r.Op, r.Type, d.index), func() error {
		stream := streamOf(s.Handle)
		return failed(C.launch(kernel, (C.CUstream)(unsafe.Pointer(stream.C())), C.uint(blocks), blockThreads,
			(*C.CUdeviceptr)(unsafe.Pointer(&r.Inputs[0])), C.uint(len(r.Inputs)), C.CUdeviceptr(r.Output),
			C.ulonglong(count), C.ulonglong(packs), C.double(r.Operand)))
	})
}
