// Package nccl opens NVIDIA's libnccl.so.2 at run time, for the engine of package vendor. Nothing links to the library.
package nccl

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include "table.h"

static scn_table table;

// Returns the name of a function that the library lacks, NULL if there is none.
static const char *bind_all(void *library) {
#define BIND(name, result, parameters)                              \
  *(void **)&table.name = dlsym(library, "nccl" #name);             \
  if (table.name == NULL) return "nccl" #name;
  SCN_FUNCTIONS(BIND)
#undef BIND
  return NULL;
}

// A copy that the process has loaded already comes first: it is torch's.
static void *open_library(const char *name) {
  void *known = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return known != NULL ? known : dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static int get_version(int *v) { return table.GetVersion(v); }
static const char *error_string(int code) { return table.GetErrorString(code); }
static const char *last_error(scn_comm c) { return table.GetLastError(c); }
static int unique_id(scn_id *id) { return table.GetUniqueId(id); }
static int join(scn_comm *c, int ranks, const void *id, int rank) {
  scn_config config = {sizeof config, SCN_CONFIG_MAGIC, SCN_CONFIG_VERSION, 0};
  return table.CommInitRankConfig(c, ranks, *(const scn_id *)id, rank, &config);
}
static int finalize(scn_comm c) { return table.CommFinalize(c); }
static int destroy(scn_comm c) { return table.CommDestroy(c); }
static int abort_all(scn_comm c) { return table.CommAbort(c); }
static int async_error(scn_comm c, int *state) { return table.CommGetAsyncError(c, state); }
static int group_start(void) { return table.GroupStart(); }
static int group_end(void) { return table.GroupEnd(); }
static int pre_mul_sum(int *op, uint64_t factor, int type, scn_comm c) {
  return table.RedOpCreatePreMulSum(op, &factor, type, SCN_HOST_IMMEDIATE, c); // read in the call
}
static int destroy_op(int op, scn_comm c) { return table.RedOpDestroy(op, c); }

// Addresses of devices are numbers in Go. The kinds are those of package vendor.
static int call(int kind, uintptr_t from, uintptr_t to, size_t count, int type, int op, int peer, scn_comm c,
                uintptr_t stream) {
  const void *in = (const void *)from;
  void *out = (void *)to;
  scn_stream s = (scn_stream)stream;
  switch (kind) {
    case 0: return table.AllReduce(in, out, count, type, op, c, s);
    case 1: return table.Broadcast(in, out, count, type, peer, c, s);
    case 2: return table.Reduce(in, out, count, type, op, peer, c, s);
    case 3: return table.AllGather(in, out, count, type, c, s);
    case 4: return table.ReduceScatter(in, out, count, type, op, c, s);
    case 5: return table.Send(in, count, type, peer, c, s);
    default: return table.Recv(out, count, type, peer, c, s);
  }
}
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/device"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/engine/vendor"
)

// fileName is the library's name for the dynamic linker.
const fileName = "libnccl.so.2"

// facadeMark is a symbol of this project's own library with the interface of NCCL. It calls this engine, so this engine must not
// call it.
const facadeMark = "sagecomm_nccl_facade"

// Library implements vendor.Library.
type Library struct{}

var _ vendor.GraphLibrary = Library{}

// Open returns the library, or why there is none. It starts no driver.
var Open = sync.OnceValues(func() (Library, error) {
	if err := cuda.Present(); err != nil {
		return Library{}, err
	}
	return Library{}, load(fileName)
})

// blocking is the variable that makes NCCL's calls wait for peers, whatever a program asks for.
const blocking = "NCCL_COMM_BLOCKING"

// Blocks returns an error if the environment makes the library's calls wait for peers. Nothing could end such a call.
func Blocks(environ []string) error {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, blocking+"="); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 0, 64); err == nil && n != 0 {
				return fmt.Errorf("%s=%s makes calls of NCCL wait for peers, and an abort would wait for them: unset it", blocking, value)
			}
		}
	}
	return nil
}

// load fills the table from a library.
func load(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle := C.open_library(name)
	if handle == nil {
		return fmt.Errorf("no NCCL: %s", C.GoString(C.dlerror()))
	}
	mark := C.CString(facadeMark)
	defer C.free(unsafe.Pointer(mark))
	if C.dlsym(handle, mark) != nil {
		return fmt.Errorf("the %s of this process is sagecomm's own; NCCL is behind it", path)
	}
	if lacks := C.bind_all(handle); lacks != nil {
		return fmt.Errorf("the %s of this process has no %s: it is older than NCCL 2.27", path, C.GoString(lacks))
	}
	var version C.int
	if err := failed(C.get_version(&version)); err != nil {
		return fmt.Errorf("%s does not tell its version: %w", path, err)
	}
	if version < C.SCN_LEAST_VERSION {
		return fmt.Errorf("%s has the version %d, expected NCCL 2.27 (22700) or newer: earlier ones hang in aborts, or where calls do not block", path, int(version))
	}
	return nil
}

// failed returns the error for a result.
func failed(result C.int) error {
	if result == C.SCN_SUCCESS || result == C.SCN_IN_PROGRESS {
		return nil
	}
	text := C.GoString(C.error_string(result))
	if detail := C.GoString(C.last_error(nil)); detail != "" {
		text += ": " + detail
	}
	return errorOf(result, text)
}

// errorOf returns the error for a result that is one.
func errorOf(result C.int, text string) error {
	err := errors.New(text)
	if result == C.SCN_INVALID_ARGUMENT || result == C.SCN_INVALID_USAGE {
		return vendor.Refusal(err)
	}
	return err // also where the library says that it is its own, as it does of connections that were cut
}

// Name implements vendor.Library.
func (Library) Name() string { return "nccl" }

// Vendor implements vendor.Library.
func (Library) Vendor() string { return "cuda" }

// Capturer implements vendor.GraphLibrary.
func (Library) Capturer(index int) (device.Capturer, error) {
	d, err := cuda.Open(index)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// NewID implements vendor.Library.
func (Library) NewID() ([]byte, error) {
	var id C.scn_id
	if err := failed(C.unique_id(&id)); err != nil {
		return nil, fmt.Errorf("ncclGetUniqueId: %w", err)
	}
	return C.GoBytes(unsafe.Pointer(&id), C.sizeof_scn_id), nil
}

// Join implements vendor.Library.
func (Library) Join(id []byte, size, rank int, _ vendor.Group) (vendor.Communicator, error) {
	if len(id) != C.sizeof_scn_id {
		return nil, fmt.Errorf("the unique id of rank 0 has %d bytes, expected %d", len(id), C.sizeof_scn_id)
	}
	c := new(communicator)
	if err := failed(C.join(&c.c, C.int(size), unsafe.Pointer(&id[0]), C.int(rank))); err != nil {
		return nil, fmt.Errorf("ncclCommInitRankConfig: %w", err)
	}
	return c, nil
}

// communicator implements vendor.Communicator. It does not block: State polls.
type communicator struct {
	c       C.scn_comm
	settled atomic.Bool // nothing is queued any more
}

// State implements vendor.Communicator.
func (c *communicator) State() (queued bool, err error) {
	var state C.int
	if err := failed(C.async_error(c.c, &state)); err != nil {
		return false, fmt.Errorf("ncclCommGetAsyncError: %w", err)
	}
	return state == C.SCN_SUCCESS, failed(state)
}

// Do implements vendor.Communicator.
func (c *communicator) Do(calls []vendor.Call, stream uintptr) error {
	if err := failed(C.group_start()); err != nil {
		return fmt.Errorf("ncclGroupStart: %w", err)
	}
	var first error
	for _, one := range calls {
		if first = c.call(one, stream); first != nil {
			break
		}
	}
	if err := failed(C.group_end()); err != nil && first == nil { // it also ends a group after an error
		return fmt.Errorf("ncclGroupEnd: %w", err)
	}
	return first
}

func (c *communicator) call(one vendor.Call, stream uintptr) error {
	op := C.int(one.Op)
	if one.Factor {
		factor := scalar(one.Type, one.Scale)
		if err := failed(C.pre_mul_sum(&op, C.uint64_t(binary.NativeEndian.Uint64(factor[:])), C.int(one.Type), c.c)); err != nil {
			return fmt.Errorf("ncclRedOpCreatePreMulSum: %w", err)
		}
		defer C.destroy_op(op, c.c) // kernels that were called keep what they need
	}
	err := failed(C.call(C.int(one.Kind), C.uintptr_t(one.From), C.uintptr_t(one.To), C.size_t(one.Count), C.int(one.Type), op,
		C.int(one.Peer), c.c, C.uintptr_t(stream)))
	if err != nil {
		return fmt.Errorf("nccl%s: %w", names[one.Kind], err)
	}
	return nil
}

// names are those of the functions, by vendor.CallKind.
var names = [...]string{"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "Send", "Recv"}

// Abort implements vendor.Communicator. The call joins the thread of NCCL that queues kernels (ncclCommEnsureReady of its src/init.cc), and waits
// for graphs and for the device then.
func (c *communicator) Abort() bool {
	C.abort_all(c.c)
	c.settled.Store(true)
	return true
}

// threadBound bounds how long Settle waits for a thread that is queueing kernels. One that waits for peers ends by the abort.
const threadBound = 50 * time.Millisecond

// Settle implements vendor.Settler. The last act of the thread of NCCL that queues kernels is to set the result of the communicator, which is
// "in progress" until then (groupLaunch of NCCL's src/group.cc).
func (c *communicator) Settle() {
	sleep := 20 * time.Microsecond
	for end := time.Now().Add(threadBound); ; sleep = min(2*sleep, time.Millisecond) {
		var state C.int
		switch {
		case C.async_error(c.c, &state) != C.SCN_SUCCESS:
			return
		case state != C.SCN_IN_PROGRESS:
			c.settled.Store(true)
			return
		case time.Now().After(end):
			return
		}
		time.Sleep(sleep)
	}
}

// Settled implements vendor.Communicator.
func (c *communicator) Settled() bool { return c.settled.Load() }

// Destroy implements vendor.Communicator.
func (c *communicator) Destroy() {
	defer c.settled.Store(true)
	if failed(C.finalize(c.c)) != nil || !c.finalized() {
		C.abort_all(c.c)
		return
	}
	C.destroy(c.c)
}

// finalized reports whether all ranks have ended what they do for the others.
func (c *communicator) finalized() bool {
	for end := time.Now().Add(finalizeBound); ; time.Sleep(time.Millisecond) {
		queued, err := c.State()
		if queued || err != nil {
			return err == nil
		}
		if time.Now().After(end) {
			return false
		}
	}
}

const finalizeBound = 5 * time.Second
