/* avx2.c: registers of 32 bytes. Nothing here may run before scr_get_kernels() has looked at the processor. */
#include "variants.h"

#ifdef SCR_KERNELS_X86
#include <immintrin.h>

#pragma GCC target("avx2,f16c,prfchw")
#pragma GCC optimize("fp-contract=off")

#define SCR_VB 32
#define SCR_NAME "avx2"
#define SCR_TABLE scr_kernels_avx2
#define SCR_STREAM(p, v) _mm256_stream_si256((__m256i *)(void *)(p), (__m256i)(v))
#define SCR_STREAM_FENCE() _mm_sfence()

#include "vector.inc.h"

#include "half.inc.h"
#include "ops.inc.h"

#include "copy.inc.h"
#include "reduce.inc.h"
#include "table.inc.h"
#endif
