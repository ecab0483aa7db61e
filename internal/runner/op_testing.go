//go:build !release

package runner

/*
#include "op.h"

// scr_test_op applies the rules of op.c to an operation with one segment on either side. A length of -1 means no segment.
static _Bool scr_test_op(int kind, int dtype, int reduce_op, int root, const uint64_t *in_blocks, const uint64_t *out_blocks,
                         int64_t in, int64_t out, int32_t rank, int32_t size, uint64_t *bytes) {
  sagecomm_segment segment[2] = {{.bytes = (uint64_t)in}, {.bytes = (uint64_t)out}};
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = (uint8_t)dtype,
                    .reduce_op = (uint8_t)reduce_op,
                    .root = root,
                    .n_in = in != -1,
                    .n_out = out != -1,
                    .in = &segment[0],
                    .out = &segment[1],
                    .in_blocks = in_blocks,
                    .out_blocks = out_blocks};
  *bytes = scr_op_bytes(&op, rank, size);
  return scr_op_allowed(rank, &op, *bytes);
}
*/
import "C"

import (
	"unsafe"

	"sagecomm/internal/coll"
)

// This file serves op_test.go, because a file whose name ends in _test.go may not use cgo. The linker drops its functions
// from the library.

// testOp returns the length by which C identifies an operation, or false if input and output do not fit together, and whether C
// admits the operation to the fast path. Each side has one segment, or none if its length is -1.
func testOp(op coll.Op, in, out int64, rank, size int) (bytes uint64, fits, allowed bool) {
	var n C.uint64_t
	ok := C.scr_test_op(C.int(op.Kind), C.int(op.Type), C.int(op.Reduce), C.int(op.Root), blocksInC(op.InBlocks), blocksInC(op.OutBlocks),
		C.int64_t(in), C.int64_t(out), C.int32_t(rank), C.int32_t(size), &n)
	return uint64(n), n != ^C.uint64_t(0), bool(ok)
}

// blocksInC returns the lengths as an array of C, or nil if there are none.
func blocksInC(blocks []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.SliceData(blocks)) }
