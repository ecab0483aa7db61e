// sparse.go: the all_reduce of sparse tensors for C callers.
package main

/*
#include <stdlib.h>
#include "sagecomm.h"

int32_t sagecomm_sparse_allocate(const sagecomm_sparse_sum *s, int32_t rank, int64_t elements, sagecomm_segment *indices,
                                 sagecomm_segment *values, char *why, size_t why_n);
int32_t sagecomm_sparse_add(const sagecomm_sparse_sum *s, int32_t *culprit, char *why, size_t why_n);
*/
import "C"

import (
	"errors"
	"time"
	"unsafe"

	"sagecomm/pgbackend"
)

//export sagecommAllReduceSparse
func sagecommAllReduceSparse(group C.sagecomm_group, sum *C.sagecomm_sparse_sum, work *C.sagecomm_work, sequence *C.uint64_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "all_reduce_sparse")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if sum == nil || work == nil || sequence == nil || sum.struct_size < C.sizeof_sagecomm_sparse_sum || sum.allocate == nil || sum.add == nil {
		return answer(err, invalid("all_reduce_sparse: incomplete description"))
	}
	promise, number, f := g.AllReduceSparse(sparseSum(*sum))
	if f != nil {
		return answer(err, f)
	}
	*work, *sequence = C.sagecomm_work(promise.Handle()), C.uint64_t(number)
	return C.SAGECOMM_PENDING
}

// sparseSum translates C's description of a sparse all_reduce to Go's.
func sparseSum(c C.sagecomm_sparse_sum) pgbackend.SparseSum {
	s := pgbackend.SparseSum{
		Indices: segmentBytes(c.indices), Values: segmentBytes(c.values), Timeout: time.Duration(c.timeout_ns), Stack: uint64(c.stack),
		Header: *(*pgbackend.SparseHeader)(unsafe.Pointer(&c.header)),
	}
	s.Allocate = func(rank int, elements int64) (indices, values []byte, err error) {
		var i, v C.sagecomm_segment
		err = explained(func(why *C.char) C.int32_t {
			return C.sagecomm_sparse_allocate(&c, C.int32_t(rank), C.int64_t(elements), &i, &v, why, reasonBytes)
		})
		return segmentBytes(i), segmentBytes(v), err
	}
	s.Add = func() (culprit int, err error) {
		rank := C.int32_t(-1)
		err = explained(func(why *C.char) C.int32_t { return C.sagecomm_sparse_add(&c, &rank, why, reasonBytes) })
		return int(rank), err
	}
	return s
}

// Compiling fails here if the headers of Go and C differ in size.
const _ = -(unsafe.Sizeof(pgbackend.SparseHeader{}) ^ C.sizeof_sagecomm_sparse_header)

func segmentBytes(s C.sagecomm_segment) []byte { return unsafe.Slice((*byte)(s.data), int(s.bytes)) }

// explained calls a function of C that returns 0, or -1 with a text in `why`.
func explained(call func(why *C.char) C.int32_t) error {
	why := (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(why))
	if call(why) != 0 {
		return errors.New(C.GoString(why))
	}
	return nil
}
