/* cuda.h: in front of NVIDIA's header on the path. gorgonia.org/cu calls five functions as CUDA 12 declares them, where the
 * header of CUDA 13 gives their names to functions with other parameters. The driver has both. */
#ifndef SAGECOMM_CUDA_H
#define SAGECOMM_CUDA_H
#include_next <cuda.h>
#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
#undef cuMemPrefetchAsync
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);
#undef cuMemAdvise
CUresult cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice);
#undef cuGraphGetEdges
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
#undef cuGraphAddDependencies
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
#endif
#endif
