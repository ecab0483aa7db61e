//go:build !release

package kernels

/*
#include "variants.h"

static void scr_test_copy(void *dst, const void *src, size_t n, int stream) {
  const scr_kernels *k = scr_get_kernels();
  (stream ? k->copy_stream : k->copy)(dst, src, n);
}
static int scr_test_defined(int dtype, int op) {
  const scr_kernels *k = scr_get_kernels();
  return (k->reduce[dtype][op] != NULL) | (k->scale[dtype] != NULL) << 1;
}
static void scr_test_repeat_reduce(void *dst, void *dst2, const void *const *src, int n, size_t count, int dtype, int op,
                                 double divisor, long rounds) {
  scr_reduce_fn *reduce = scr_get_kernels()->reduce[dtype][op];
  for (long i = 0; i < rounds; i++) reduce(dst, dst2, src, n, count, divisor);
}
static void scr_test_repeat_copy(void *dst, const void *src, size_t n, int stream, long rounds) {
  const scr_kernels *k = scr_get_kernels();
  for (long i = 0; i < rounds; i++) (stream ? k->copy_stream : k->copy)(dst, src, n);
}
*/
import "C"

import "unsafe"

// This file serves tests only: a file whose name ends in _test.go may not use cgo. The linker would keep its C code in the
// library, so a build of that leaves the file out.

func testCopy(dst, src []byte, stream bool) {
	C.scr_test_copy(address(dst), address(src), C.size_t(len(src)), flag(stream))
}

// testDefined reports whether the table in use has a reduce and a scale function.
func testDefined(dtype, op int) (reduce, scale bool) {
	bits := C.scr_test_defined(C.int(dtype), C.int(op))
	return bits&1 != 0, bits&2 != 0
}

// testRepeatReduce reduces `rounds` times in one call. The memory that src lists is pinned or was not allocated by
// Go.
func testRepeatReduce(dst unsafe.Pointer, src *unsafe.Pointer, n, count, dtype, op, rounds int) {
	C.scr_test_repeat_reduce(dst, nil, src, C.int(n), C.size_t(count), C.int(dtype), C.int(op), 1, C.long(rounds))
}

func testRepeatCopy(dst, src []byte, stream bool, rounds int) {
	C.scr_test_repeat_copy(address(dst), address(src), C.size_t(len(src)), flag(stream), C.long(rounds))
}

// testFloatMode returns the floating-point mode of the calling thread; testSetFloatMode sets it. The caller has
// locked its goroutine to the thread.
func testFloatMode() uint64        { return uint64(C.fp_read()) }
func testSetFloatMode(mode uint64) { C.fp_write(C.uint64_t(mode)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
