/* trampolines_arm64.S: see trampolines.inc.h. x16 is free for this at a call (AAPCS64). */
#include "cu_symbols.h"
#include "nvml_symbols.h"

.macro jump table, at
  hint 34 /* bti c */
  adrp x16, \table+\at
  ldr x16, [x16, #:lo12:\table+\at]
  br x16
.endm

#include "trampolines.inc.h"

.set at, 0
#define X(name) entry name, lazylink_nvml_table, at; .set at, at + 8;
NVML_TEXTS(X)
NVML_FUNCTIONS(X)
#undef X

.set at, 0
#define X(name) entry name, lazylink_cu_table, at; .set at, at + 8;
CU_TEXTS(X)
CU_STARTS(X)
CU_FUNCTIONS(X)
