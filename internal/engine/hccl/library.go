// Package hccl opens Huawei's libhccl.so at run time, for the engine of package vendor. Nothing links to the library.
//
// HCCL has neither groups of calls nor an abort, and its functions may wait for peers: each communicator calls them on a thread of its
// own. After a failure its kernels may stay in their stream, with the buffers that they use, until HCCL's own timeout or the end
// of the process.
package hccl

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include <stdlib.h>
// #include "hccl.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/device/ascend"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/lazylink"
)

const fileName = "libhccl.so"

// Library implements vendor.Library.
type Library struct{}

var _ vendor.Library = Library{}

// Open returns the library, or why there is none. It starts no driver.
var Open = sync.OnceValues(func() (Library, error) {
	if err := ascend.Present(); err != nil {
		return Library{}, err
	}
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.hccl)), int(C.hccl_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.hccl_names))
	if err := lazylink.Open(fileName, names, table); err != nil {
		return Library{}, fmt.Errorf("no HCCL: %w", err)
	}
	return Library{}, vendor.Usable(fileName, "HCCL", names, table)
})

// failed returns the error for a result of a function: any code but 0 is one.
func failed(function string, code C.int32_t) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", function, C.GoString(C.call_HcclGetErrorString(code)), int(code))
}

// Name implements vendor.Library.
func (Library) Name() string { return "hccl" }

// Vendor implements vendor.Library.
func (Library) Vendor() string { return "npu" }

// NewID implements vendor.Library.
func (Library) NewID() ([]byte, error) {
	root := make([]byte, C.hccl_root_bytes)
	if err := failed("HcclGetRootInfo", C.call_HcclGetRootInfo(unsafe.Pointer(&root[0]))); err != nil {
		return nil, err
	}
	return root, nil
}

// Join implements vendor.Library.
func (Library) Join(id []byte, size, rank int, g vendor.Group) (vendor.Communicator, error) {
	if len(id) != C.hccl_root_bytes {
		return nil, fmt.Errorf("the root info of rank 0 has %d bytes, expected %d", len(id), C.hccl_root_bytes)
	}
	c := &communicator{thread: vendor.NewThread(g, ascend.Inherit()), rank: rank}
	root := C.CBytes(id)
	c.thread.Begin(func() error {
		defer C.free(root)
		var made C.uintptr_t
		err := failed("HcclCommInitRootInfo", C.call_HcclCommInitRootInfo(C.uint32_t(size), root, C.uint32_t(rank), &made))
		if err == nil { // after an error HCCL may leave the handle of a communicator that it has destroyed
			c.c.Store(uintptr(made))
		}
		return err
	})
	return c, nil
}

// communicator implements vendor.Communicator.
type communicator struct {
	thread *vendor.Thread
	c      atomic.Uintptr // 0: the ranks have not joined
	rank   int
	used   bool // an operation was called
}

// endBound is how long the end of a communicator without kernels is waited for.
const endBound = 5 * time.Second

func (c *communicator) handle() C.uintptr_t { return C.uintptr_t(c.c.Load()) }

// State implements vendor.Communicator.
func (c *communicator) State() (queued bool, err error) {
	if queued, err = c.thread.State(); err != nil || !queued {
		return false, err
	}
	var code C.int32_t
	if err := failed("HcclGetCommAsyncError", C.call_HcclGetCommAsyncError(c.handle(), &code)); err != nil {
		return false, err
	}
	return true, failed("asynchronous error", code)
}

// Do implements vendor.Communicator.
func (c *communicator) Do(calls []vendor.Call, stream uintptr) error {
	c.used = true
	c.thread.Queue(calls, func(one vendor.Call) error { return c.call(one, stream) }, func() error { return c.exchange(calls, stream) })
	return nil
}

func (c *communicator) call(one vendor.Call, stream uintptr) error {
	from, to, count, of, op := C.uintptr_t(one.From), C.uintptr_t(one.To), C.uint64_t(one.Count), C.int32_t(one.Type), C.int32_t(one.Op)
	root, on := C.uint32_t(one.Peer), C.uintptr_t(stream)
	switch one.Kind {
	case vendor.AllReduce:
		return failed("HcclAllReduce", C.call_HcclAllReduce(from, to, count, of, op, c.handle(), on))
	case vendor.Broadcast: // HCCL's has one buffer
		if one.Peer == c.rank && one.From != one.To {
			if err := ascend.CopyWithin(stream, one.To, one.From, one.Count*one.Bytes); err != nil {
				return err
			}
		}
		return failed("HcclBroadcast", C.call_HcclBroadcast(to, count, of, root, c.handle(), on))
	case vendor.Reduce: // a rank without a result has no room for one, and HCCL refuses a null pointer
		if one.Peer != c.rank {
			to = from
		}
		return failed("HcclReduce", C.call_HcclReduce(from, to, count, of, op, root, c.handle(), on))
	case vendor.AllGather:
		return failed("HcclAllGather", C.call_HcclAllGather(from, to, count, of, c.handle(), on))
	case vendor.ReduceScatter:
		return failed("HcclReduceScatter", C.call_HcclReduceScatter(from, to, count, of, op, c.handle(), on))
	}
	return errors.New("internal error: a send or a recv beside other calls; please report this")
}

// exchange queues sends and recvs as one batch: HcclSend and HcclRecv, one after the other, may wait for each other. What a rank has
// for itself is a copy.
func (c *communicator) exchange(calls []vendor.Call, stream uintptr) error {
	var items []C.hccl_item
	for _, one := range calls {
		kind, at := C.int32_t(C.hccl_send), one.From
		if one.Kind == vendor.Recv {
			kind, at = C.hccl_recv, one.To
		}
		if one.Peer != c.rank {
			items = append(items, C.hccl_item{_type: kind, at: C.uintptr_t(at), count: C.uint64_t(one.Count), of: C.int32_t(one.Type), peer: C.uint32_t(one.Peer)})
		}
	}
	err := vendor.ToItself(calls, c.rank, func(to, from uintptr, bytes uint64) error { return ascend.CopyWithin(stream, to, from, bytes) })
	if err != nil || len(items) == 0 {
		return err
	}
	return failed("HcclBatchSendRecv", C.call_HcclBatchSendRecv(&items[0], C.uint32_t(len(items)), c.handle(), C.uintptr_t(stream)))
}

// Abort implements vendor.Communicator. HCCL has no call that ends kernels whose peers do not come, and HcclCommDestroy waits for them, or
// returns HCCL_E_AGAIN beside another call (CANN 8.0), or has no rule for that (before). A communicator that no operation has used has no kernels, so it is
// destroyed. If the call that makes it has not returned, nothing ends that but HCCL's own timeout (HCCL_CONNECT_TIMEOUT): the thread destroys what
// it may make then, and nobody waits for it.
func (c *communicator) Abort() bool {
	if c.used {
		c.thread.Stop(nil)
		return c.c.Load() == 0
	}
	c.thread.Stop(c.destroyUnused)
	if c.c.Load() != 0 {
		select {
		case <-c.thread.Over():
		case <-time.After(endBound):
		}
	}
	return true
}

// destroyUnused destroys a communicator without kernels, if there is one. Requires: the thread.
func (c *communicator) destroyUnused() {
	if c.c.Load() != 0 {
		C.call_HcclCommDestroy(c.handle()) // after an error nothing more can be done about it
	}
}

// Settled implements vendor.Communicator.
func (c *communicator) Settled() bool { return c.thread.Ended() }

// Destroy implements vendor.Communicator.
func (c *communicator) Destroy() {
	c.thread.Begin(func() error { return failed("HcclCommDestroy", C.call_HcclCommDestroy(c.handle())) })
	c.thread.End()
	<-c.thread.Over()
}
