/* avx512.c: registers of 64 bytes. Nothing here may run before scr_get_kernels() has looked at the processor. */
#include "variants.h"

#ifdef SCR_KERNELS_X86
#include <immintrin.h>

#pragma GCC target("avx2,f16c,prfchw,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#pragma GCC optimize("fp-contract=off")

#define SCR_VB 64
#define SCR_NAME "avx512"
#define SCR_TABLE scr_kernels_avx512
#define SCR_STREAM(p, v) _mm512_stream_si512((void *)(p), (__m512i)(v))
#define SCR_STREAM_FENCE() _mm_sfence()

#include "vector.inc.h"

#include "half.inc.h"
#include "ops.inc.h"

#include "copy.inc.h"
#include "reduce.inc.h"
#include "table.inc.h"
#endif
