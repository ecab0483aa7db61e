package runner

/*
#include "runner.h"
#include "shared_block.h"
#include "p2p.h"
*/
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// This file gives package shadow the fifos of p2p operations (docs/protocol.md, sections 8 and 16).

// The kinds of frames.
const (
	FrameEager    = C.SCR_FRAME_EAGER
	FrameAnnounce = C.SCR_FRAME_ANNOUNCE
	FrameGrant    = C.SCR_FRAME_GRANT
	FrameData     = C.SCR_FRAME_DATA
	FrameWrap     = C.SCR_FRAME_WRAP
)

// Line is what the offset of shared memory is a multiple of.
const Line = C.SCR_LINE

// Limits of frames.
const (
	EagerBytes  = C.SCR_EAGER_BYTES
	EagerCredit = C.SCR_EAGER_CREDIT
	Delivered   = C.SCR_DELIVERED // the Tag of a FrameData of a shadow whose payload lies in the buffer of the recv already
	frameHeader = C.SCR_FRAME_HEADER
)

// FrameBytes returns how many bytes of a fifo a frame with a payload takes.
func FrameBytes(payload uint64) uint64 { return frameHeader + (payload+63)&^63 }

// Fifo returns the offset of the fifo to a rank, 0 before there is one.
func (w Words) Fifo(to int) *atomic.Uint64 {
	return word64(unsafe.Pointer(C.scr_shared_fifo(w.b, w.size, C.uint32_t(to))))
}

// Read returns the number of bytes that the owner has taken out of the fifo from a rank.
func (w Words) Read(from int) *atomic.Uint64 {
	return word64(unsafe.Pointer(&C.scr_shared_fifo_reader(w.b, C.uint32_t(from)).read))
}

// Released returns the number of eager bytes of a rank that recvs of the owner have matched.
func (w Words) Released(from int) *atomic.Uint64 {
	return word64(unsafe.Pointer(&C.scr_shared_fifo_reader(w.b, C.uint32_t(from)).eager_released))
}

// Fifo is the memory of a fifo.
type Fifo struct {
	c     *C.scr_fifo
	bytes uint64
}

// FifoAt returns the fifo at an address.
func (g Geometry) FifoAt(p unsafe.Pointer) Fifo { return Fifo{(*C.scr_fifo)(p), g.Fifo} }

// Written returns the number of bytes that were put into the fifo.
func (f Fifo) Written() *atomic.Uint64 { return word64(unsafe.Pointer(&f.c.written)) }

// at returns the memory of position n, which counts bytes as Written does.
func (f Fifo) at(n uint64) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(f.c), C.sizeof_scr_fifo+n%f.bytes)
}

// Rest returns the number of bytes from a position to the end of the fifo, where no frame is cut.
func (f Fifo) Rest(n uint64) uint64 { return f.bytes - n%f.bytes }

// Frame is the header of a frame.
type Frame struct {
	Kind             int
	Type             uint8 // of elements; of FrameEager and FrameAnnounce
	Tag              int32
	Bytes, Total, ID uint64
}

// Frame returns the header of the frame at a position, and how much of the fifo the frame takes. written is the number of bytes that are there.
func (f Fifo) Frame(n, written uint64) (h Frame, size uint64, err error) {
	c := *(*C.scr_frame)(f.at(n)) // what is checked is what is sent, even if somebody writes there meanwhile
	h = Frame{Kind: int(c._type), Type: uint8(c.dtype), Tag: int32(c.tag), Bytes: uint64(c.bytes), Total: uint64(c.total), ID: uint64(c.id)}
	size = FrameBytes(h.Bytes)
	if h.Kind == FrameWrap {
		size = f.Rest(n)
	}
	if !bool(C.scr_frame_fits(C.uint32_t(c._type), C.uint64_t(h.Bytes), C.uint64_t(h.Total), C.uint64_t(written-n), C.uint64_t(f.Rest(n)), C.uint64_t(f.bytes))) || c.dtype > 0xff {
		err = fmt.Errorf("a frame of kind %d with %d bytes of %d at %d, where %d bytes are written", h.Kind, h.Bytes, h.Total, n, written)
	}
	return h, size, err
}

// Payload returns the place of the payload of the frame at a position.
func (f Fifo) Payload(n, bytes uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(f.at(n), frameHeader)), bytes)
}

// Put writes the header of a frame at a position.
func (f Fifo) Put(n uint64, h Frame) {
	*(*C.scr_frame)(f.at(n)) = C.scr_frame{_type: C.uint16_t(h.Kind), dtype: C.uint16_t(h.Type), tag: C.int32_t(h.Tag), bytes: C.uint64_t(h.Bytes),
		total: C.uint64_t(h.Total), id: C.uint64_t(h.ID)}
}

// PutWrap writes the frame that fills the fifo from a position to its end.
func (f Fifo) PutWrap(n uint64) {
	f.Put(n, Frame{Kind: FrameWrap, Bytes: f.Rest(n) - frameHeader})
}
