/* portable.c: registers of 16 bytes, which every 64-bit processor has (SSE2, NEON). */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

#include "variants.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#else
#include <arm_neon.h>
#endif

/* ThreadSanitizer does not see stores of intrinsics, so a build with it uses ordinary stores. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define SCR_STREAM(p, v) _mm_stream_si128((__m128i *)(void *)(p), (__m128i)(v))
#define SCR_STREAM_FENCE() _mm_sfence()
#endif

#define SCR_VB 16
#define SCR_NAME "portable"
#define SCR_TABLE scr_kernels_portable

#include "vector.inc.h"

#include "half.inc.h"
#include "ops.inc.h"

#include "copy.inc.h"
#include "reduce.inc.h"
#include "table.inc.h"
