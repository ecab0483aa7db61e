//go:build cuda

package cuda

/*
#include <cuda.h>
#include <stdatomic.h>
#include <stdlib.h>

CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *);

// Whoever counts and each graph that is left has one reference. The last one frees the memory, since graphs may outlive whoever counts.
typedef atomic_llong references;

static references *new_references(void) {
  references *r = malloc(sizeof *r);
  if (r != NULL) atomic_init(r, 1);
  return r;
}

// The driver calls this on a thread of its own, where no other call of it is allowed.
static void release_reference(void *r) {
  if (atomic_fetch_sub((references *)r, 1) == 1) free(r);
}

static long long graphs_left(references *r) { return atomic_load(r) - 1; }

// Makes the graph of a capture, and what is made of it, hold a reference.
static CUresult count_graph(CUstream stream, references *r) {
  CUstreamCaptureStatus status;
  CUgraph graph = NULL;
  CUuserObject object;
  CUresult rc = cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL);
  if (rc != CUDA_SUCCESS) return rc;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  rc = cuUserObjectCreate(&object, r, release_reference, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (rc != CUDA_SUCCESS) return rc;
  atomic_fetch_add(r, 1);
  rc = cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (rc != CUDA_SUCCESS) cuUserObjectRelease(object, 1);
  return rc;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"sagecomm/internal/device"
	"sagecomm/internal/lazylink"
)

// tellsOfGraphs are functions that not all drivers have.
var tellsOfGraphs = []string{captureInfo, "cuUserObjectCreate", "cuUserObjectRelease", "cuGraphRetainUserObject"}

// graphCount implements device.GraphCount by an object in each graph, whose end the driver tells.
type graphCount struct {
	d          *Driver
	references *C.references // nil: no memory
}

// NewGraphCount implements device.Capturer.
func (d *Driver) NewGraphCount() device.GraphCount {
	c := &graphCount{d, C.new_references()}
	if c.references != nil {
		runtime.AddCleanup(c, func(r *C.references) { C.release_reference(unsafe.Pointer(r)) }, c.references)
	}
	return c
}

// Add implements device.GraphCount.
func (c *graphCount) Add(s device.Stream) error {
	for _, name := range tellsOfGraphs {
		if !lazylink.CUDAHas(name) {
			return fmt.Errorf("the CUDA driver has no %s", name)
		}
	}
	if c.references == nil {
		return errors.New("out of memory")
	}
	defer runtime.KeepAlive(c)
	stream := streamOf(s.Handle)
	return c.d.do("cannot make a graph tell its end", func() error {
		return failed(C.count_graph((C.CUstream)(unsafe.Pointer(stream.C())), c.references))
	})
}

// Live implements device.GraphCount.
func (c *graphCount) Live() int {
	if c.references == nil {
		return 0
	}
	defer runtime.KeepAlive(c)
	return int(C.graphs_left(c.references))
}
