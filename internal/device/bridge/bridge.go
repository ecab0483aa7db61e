// Package bridge implements the seams of package device on sagecomm_bridge, the function table that an operation of the C ABI
// brings along. Behind it stands the framework that owns the tensors: with torch, the streams and events of c10, for devices of
// any type.
package bridge

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../../../export/sagecomm.h"

#define WHY 512

static int32_t make_stream(const sagecomm_bridge *b, uint64_t *stream, char *why) {
  return b->make_stream(b->ctx, stream, why, WHY);
}
static int32_t pin(const sagecomm_bridge *b, uint64_t bytes, void **memory, void **owner, char *why) {
  return b->pin(b->ctx, bytes, memory, owner, why, WHY);
}
static int32_t fork_stream(const sagecomm_bridge *b, uint64_t stream, char *why) {
  return b->fork(b->ctx, stream, why, WHY);
}

// Addresses of devices are numbers in Go, because its garbage collector may take a pointer for one into its heap.
typedef struct numbers {
  uintptr_t to, from;
  uint64_t bytes;
} numbers;
_Static_assert(sizeof(numbers) == sizeof(sagecomm_copy), "a copy is two addresses and a length");

static int32_t copy_in(const sagecomm_bridge *b, uint64_t stream, const numbers *copy, char *why) {
  return b->copy_in(b->ctx, stream, (const sagecomm_copy *)(const void *)copy, why, WHY);
}
static int32_t write_value(const sagecomm_bridge *b, uint64_t stream, uint32_t *word, uint32_t value, char *why) {
  return b->write_value(b->ctx, stream, word, value, why, WHY);
}
static int32_t adopt(const sagecomm_bridge *b, uintptr_t handle, uint64_t *stream, char *why) {
  return b->adopt_stream(b->ctx, (void *)handle, stream, why, WHY);
}
static int32_t stream_handle(const sagecomm_bridge *b, uint64_t stream, uintptr_t *handle, char *why) {
  return b->stream_handle(b->ctx, stream, (void **)handle, why, WHY);
}
enum { LEAST_SIZE = offsetof(sagecomm_bridge, keep) };

static bool has_keep(const sagecomm_bridge *b) { return b->struct_size > LEAST_SIZE && b->keep != NULL; }
static int32_t keep(const sagecomm_bridge *b, char *why) { return b->keep(b->ctx, why, WHY); }
static bool scales(const sagecomm_bridge *b) {
  return b->struct_size > offsetof(sagecomm_bridge, divide) && b->multiply != NULL && b->divide != NULL;
}

typedef struct piece {
  uintptr_t at;
  uint64_t bytes;
} piece;
_Static_assert(sizeof(piece) == sizeof(sagecomm_segment), "a piece is an address and a length");

static int32_t multiply(const sagecomm_bridge *b, uint64_t stream, uint8_t dtype, const piece *pieces, uint32_t n,
                        double factor, uintptr_t *product, char *why) {
  return b->multiply(b->ctx, stream, dtype, (const sagecomm_segment *)(const void *)pieces, n, factor,
                     (void **)(void *)product, why, WHY);
}
static int32_t divide(const sagecomm_bridge *b, uint64_t stream, uint8_t dtype, const piece *pieces, uint32_t n,
                      double divisor, char *why) {
  return b->divide(b->ctx, stream, dtype, (const sagecomm_segment *)(const void *)pieces, n, divisor, why, WHY);
}
static int32_t join(const sagecomm_bridge *b, uint64_t stream, char *why) {
  return b->join(b->ctx, stream, why, WHY);
}
static int32_t join_later(const sagecomm_bridge *b, uint64_t stream, const numbers *copies, uint32_t n, uint32_t *word,
                          uint32_t value, char *why) {
  return b->join_later(b->ctx, stream, (const sagecomm_copy *)(const void *)copies, n, word, value, why, WHY);
}
static bool complete(const sagecomm_bridge *b) {
  return b->make_stream && b->pin && b->fork && b->copy_in && b->write_value && b->adopt_stream && b->join &&
         b->join_later && b->stream_handle && b->interrupted;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Bridge is the function table of one operation. It is valid until the call that brought it returns.
type Bridge struct {
	c   *C.sagecomm_bridge
	why [C.WHY]C.char
}

var (
	_ device.Deferrer = (*Bridge)(nil)
	_ device.Runtime  = (*Bridge)(nil)
)

// New returns the bridge of an operation from sagecomm_op.bridge, or an error if the operation has none or it lacks a function.
func New(table unsafe.Pointer) (*Bridge, error) {
	b := &Bridge{c: (*C.sagecomm_bridge)(table)}
	if b.c == nil || b.c.struct_size < C.LEAST_SIZE {
		return nil, errors.New("the caller gives no access to the streams of the device (sagecomm_op.bridge)")
	}
	if !C.complete(b.c) {
		return nil, errors.New("sagecomm_op.bridge lacks a function: all of them are needed")
	}
	return b, nil
}

func (b *Bridge) result(what string, status C.int32_t) error {
	if status == 0 {
		return nil
	}
	b.why[len(b.why)-1] = 0
	return fmt.Errorf("%s: %s", what, C.GoString(&b.why[0]))
}

// Name implements device.Runtime.
func (b *Bridge) Name() string { return "bridge" }

// NewStream implements device.Runtime.
func (b *Bridge) NewStream(device.Role) (device.Stream, error) {
	var s C.uint64_t
	status := C.make_stream(b.c, &s, &b.why[0])
	return device.Stream{Number: uint64(s)}, b.result("cannot make a stream", status)
}

// Adopt makes a stream of the device's runtime known to the framework, or returns why the framework cannot use it.
func (b *Bridge) Adopt(s device.Stream) (device.Stream, error) {
	var number C.uint64_t
	status := C.adopt(b.c, C.uintptr_t(s.Handle), &number, &b.why[0])
	s.Number = uint64(number)
	return s, b.result("cannot order a stream of the device's runtime", status)
}

// Captured reports whether the framework says that the caller's stream is being captured into a graph.
func (b *Bridge) Captured() bool { return b.c.may_be_captured == C.SAGECOMM_CAPTURED }

// MayBeCaptured reports whether the caller's stream may be one that is being captured into a graph, because the framework cannot tell.
func (b *Bridge) MayBeCaptured() bool { return b.c.may_be_captured != 0 }

// DeviceName returns the name of the type of device in the framework. It is memory of the caller: nobody keeps it.
func (b *Bridge) DeviceName() string {
	if b.c.device_name == nil {
		return ""
	}
	return unsafe.String((*byte)(unsafe.Pointer(b.c.device_name)), C.strlen(b.c.device_name))
}

// Handle returns the handle by which the device's runtime knows a stream that NewStream has made. It holds until the framework is
// called for that stream again.
func (b *Bridge) Handle(s device.Stream) (uintptr, error) {
	var handle C.uintptr_t
	status := C.stream_handle(b.c, C.uint64_t(s.Number), &handle, &b.why[0])
	return uintptr(handle), b.result("cannot use a stream of the framework", status)
}

type pinned struct{ memory unsafe.Pointer }

func (p pinned) Address() unsafe.Pointer { return p.memory }

// Pin implements device.Runtime.
func (b *Bridge) Pin(bytes uint64) (device.Pinned, error) {
	var p pinned
	var owner unsafe.Pointer // who would free the memory
	status := C.pin(b.c, C.uint64_t(bytes), &p.memory, &owner, &b.why[0])
	if err := b.result(fmt.Sprintf("cannot allocate %d bytes of pinned memory", bytes), status); err != nil {
		return nil, err
	}
	return p, nil
}

// Fork implements device.Ordering.
func (b *Bridge) Fork(s device.Stream) error {
	return b.result("cannot order a stream behind the caller's", C.fork_stream(b.c, C.uint64_t(s.Number), &b.why[0]))
}

// CopyIn implements device.Runtime.
func (b *Bridge) CopyIn(s device.Stream, c device.Copy) error {
	n := C.numbers{to: C.uintptr_t(uintptr(c.Host)), from: C.uintptr_t(c.Device), bytes: C.uint64_t(c.Bytes)}
	return b.result("cannot queue a copy from the device", C.copy_in(b.c, C.uint64_t(s.Number), &n, &b.why[0]))
}

// WriteValue implements device.Runtime.
func (b *Bridge) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return b.result("cannot queue the write of a flag", C.write_value(b.c, C.uint64_t(s.Number), (*C.uint32_t)(word), C.uint32_t(value), &b.why[0]))
}

// Join implements device.Ordering.
func (b *Bridge) Join(s device.Stream) error {
	return b.result("cannot end the operation", C.join(b.c, C.uint64_t(s.Number), &b.why[0]))
}

// Keep keeps the buffers of the operation until the process ends.
func (b *Bridge) Keep() error {
	if !C.has_keep(b.c) {
		return errors.New("sagecomm_op.bridge has no function `keep`")
	}
	return b.result("the framework cannot keep the buffers", C.keep(b.c, &b.why[0]))
}

// Scales reports whether the framework has Multiply and Divide.
func (b *Bridge) Scales() bool { return bool(C.scales(b.c)) }

// Multiply is device.Scaler.Multiply. Requires: Scales.
func (b *Bridge) Multiply(s device.Stream, t coll.DataType, pieces []device.Piece, factor float64) (uintptr, error) {
	var product C.uintptr_t
	list, n := piecesOf(pieces)
	status := C.multiply(b.c, C.uint64_t(s.Number), C.uint8_t(t), list, n, C.double(factor), &product, &b.why[0])
	return uintptr(product), b.result(fmt.Sprintf("the framework cannot multiply %v by a factor", t), status)
}

// Divide is device.Scaler.Divide. Requires: Scales.
func (b *Bridge) Divide(s device.Stream, t coll.DataType, pieces []device.Piece, divisor float64) error {
	list, n := piecesOf(pieces)
	status := C.divide(b.c, C.uint64_t(s.Number), C.uint8_t(t), list, n, C.double(divisor), &b.why[0])
	return b.result(fmt.Sprintf("the framework cannot divide %v", t), status)
}

func piecesOf(pieces []device.Piece) (*C.piece, C.uint32_t) {
	list := make([]C.piece, len(pieces)+1)
	for i, p := range pieces {
		list[i] = C.piece{at: C.uintptr_t(p.At), bytes: C.uint64_t(p.Bytes)}
	}
	return &list[0], C.uint32_t(len(pieces))
}

// JoinLater implements device.Deferrer.
func (b *Bridge) JoinLater(s device.Stream, e device.End) error {
	list := make([]C.numbers, len(e.Copies)+1)
	for i, c := range e.Copies {
		list[i] = C.numbers{to: C.uintptr_t(c.Device), from: C.uintptr_t(uintptr(c.Host)), bytes: C.uint64_t(c.Bytes)}
	}
	status := C.join_later(b.c, C.uint64_t(s.Number), &list[0], C.uint32_t(len(e.Copies)), (*C.uint32_t)(e.Taken), C.uint32_t(e.Value), &b.why[0])
	return b.result("cannot end the operation", status)
}
