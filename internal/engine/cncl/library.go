// Package cncl opens Cambricon's libcncl.so at run time, for the engine of package vendor. Nothing links to the library.
//
// CNCL's functions may wait for peers, so each communicator calls them on a thread of its own. cnclAbortComm, from another thread, ends
// kernels and waits.
package cncl

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include <stdlib.h>
// #include "cncl.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/device/cambricon"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/lazylink"
)

const fileName = "libcncl.so"

// freeBound is how long the end of a communicator waits for the other ranks, which end theirs.
const freeBound = 5 * time.Second

// Library implements vendor.Library.
type Library struct{}

var _ vendor.Library = Library{}

// Open returns the library, or why there is none. It starts no driver.
var Open = sync.OnceValues(func() (Library, error) {
	if err := cambricon.Present(); err != nil {
		return Library{}, err
	}
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.cncl)), int(C.cncl_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.cncl_names))
	if err := lazylink.Open(fileName, names, table); err != nil {
		return Library{}, fmt.Errorf("no CNCL: %w", err)
	}
	return Library{}, vendor.Usable(fileName, "CNCL", names, table)
})

// failed returns the error for a result of a function: any code but 0 is one.
func failed(function string, code C.int32_t) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%#x)", function, C.GoString(C.call_cnclGetErrorStr(code)), int(code))
}

// Name implements vendor.Library.
func (Library) Name() string { return "cncl" }

// Vendor implements vendor.Library.
func (Library) Vendor() string { return "mlu" }

// NewID implements vendor.Library.
func (Library) NewID() ([]byte, error) {
	var id C.cncl_id
	if err := failed("cnclGetCliqueId", C.call_cnclGetCliqueId(unsafe.Pointer(&id))); err != nil {
		return nil, err
	}
	return C.GoBytes(unsafe.Pointer(&id), C.sizeof_cncl_id), nil
}

// Join implements vendor.Library.
func (Library) Join(id []byte, size, rank int, g vendor.Group) (vendor.Communicator, error) {
	if len(id) != C.sizeof_cncl_id {
		return nil, fmt.Errorf("the clique id of rank 0 has %d bytes, expected %d", len(id), C.sizeof_cncl_id)
	}
	on, err := cambricon.CurrentDevice()
	if err != nil {
		return nil, err
	}
	c := &communicator{thread: vendor.NewThread(g, func() error { return cambricon.Use(on) }), rank: rank}
	c.abortOnce = sync.OnceValue(func() bool { return C.call_cnclAbortComm(c.handle()) == 0 })
	clique := C.CBytes(id)
	c.thread.Begin(func() error {
		defer C.free(clique)
		var made C.uintptr_t
		devices, ranks := C.int(on), C.int(rank)
		err := failed("cnclInitComms", C.call_cnclInitComms(&made, 1, &devices, &ranks, C.int(size), clique))
		if err == nil { // after an error nothing says what the handle is
			c.c.Store(uintptr(made))
		}
		return err
	})
	return c, nil
}

// communicator implements vendor.Communicator.
type communicator struct {
	thread    *vendor.Thread
	c         atomic.Uintptr // 0: the ranks have not joined, or the communicator was freed
	abortOnce func() bool    // cnclAbortComm, which a communicator gets once; each caller waits for it and gets its result
	rank      int
}

func (c *communicator) handle() C.uintptr_t { return C.uintptr_t(c.c.Load()) }

// State implements vendor.Communicator.
func (c *communicator) State() (queued bool, err error) {
	if queued, err = c.thread.State(); err != nil || !queued {
		return false, err
	}
	if state := C.call_cnclGetCommAsyncError(c.handle()); state != C.cncl_in_progress {
		err = failed("asynchronous error", state)
	}
	return err == nil, err
}

// Do implements vendor.Communicator.
func (c *communicator) Do(calls []vendor.Call, stream uintptr) error {
	c.thread.Queue(calls, func(one vendor.Call) error { return c.call(one, stream) }, func() error { return c.exchange(calls, stream) })
	return nil
}

// exchange queues sends and recvs as one group. What a rank has for itself is a copy.
func (c *communicator) exchange(calls []vendor.Call, stream uintptr) error {
	err := vendor.ToItself(calls, c.rank, func(to, from uintptr, bytes uint64) error { return cambricon.CopyWithin(stream, to, from, bytes) })
	if err != nil {
		return err
	}
	if err := failed("cnclGroupStart", C.call_cnclGroupStart()); err != nil {
		return err
	}
	for _, one := range calls {
		if err == nil {
			err = c.thread.Stopped()
		}
		if one.Peer != c.rank && err == nil {
			err = c.call(one, stream)
		}
	}
	if ended := failed("cnclGroupEnd", C.call_cnclGroupEnd()); err == nil { // it also ends a group after an error
		err = ended
	}
	return err
}

func (c *communicator) call(one vendor.Call, stream uintptr) error {
	from, to, count, of, op := C.uintptr_t(one.From), C.uintptr_t(one.To), C.size_t(one.Count), C.int32_t(one.Type), C.int32_t(one.Op)
	peer, on := C.int(one.Peer), C.uintptr_t(stream)
	switch one.Kind {
	case vendor.AllReduce:
		return failed("cnclAllReduce", C.call_cnclAllReduce(from, to, count, of, op, c.handle(), on))
	case vendor.Broadcast:
		return failed("cnclBroadcast", C.call_cnclBroadcast(from, to, count, of, peer, c.handle(), on))
	case vendor.Reduce:
		return failed("cnclReduce", C.call_cnclReduce(from, to, count, of, op, peer, c.handle(), on))
	case vendor.AllGather:
		return failed("cnclAllGather", C.call_cnclAllGather(from, to, count, of, c.handle(), on))
	case vendor.ReduceScatter:
		return failed("cnclReduceScatter", C.call_cnclReduceScatter(from, to, count, of, op, c.handle(), on))
	case vendor.Send:
		return failed("cnclSend", C.call_cnclSend(from, count, of, peer, c.handle(), on))
	default:
		return failed("cnclRecv", C.call_cnclRecv(to, count, of, peer, c.handle(), on))
	}
}

// Abort implements vendor.Communicator. A communicator that is being made has no kernels, and the thread may wait for peers for good. If
// the call returns one nevertheless, the thread aborts it.
func (c *communicator) Abort() bool {
	c.thread.Stop(func() { c.abort() })
	return c.abort()
}

// abort aborts the communicator, if there is one, and reports whether none is left.
func (c *communicator) abort() bool { return c.c.Load() == 0 || c.abortOnce() }

// Settled implements vendor.Communicator.
func (c *communicator) Settled() bool { return c.thread.Ended() }

// Destroy implements vendor.Communicator.
func (c *communicator) Destroy() {
	freed := make(chan bool, 1)
	c.thread.Begin(func() error {
		err := failed("cnclFreeComm", C.call_cnclFreeComm(c.handle()))
		if err == nil {
			c.c.Store(0)
		}
		freed <- err == nil
		return err
	})
	select {
	case <-freed:
		c.thread.End()
	case <-time.After(freeBound): // a rank does not end its own
		c.Abort()
	}
}
