// Stands in for crt/host_defines.h of NVIDIA's compiler package. The wheel of the runtime has the headers of the public API,
// which include this one, and lacks it. Host code needs these definitions only.
#pragma once
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __no_return__ __attribute__((noreturn))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __location__(a) __annotate__(a)
#define __annotate__(a)
