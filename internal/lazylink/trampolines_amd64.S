/* trampolines_amd64.S: see trampolines.inc.h. */
#include "cu_symbols.h"
#include "nvml_symbols.h"

.macro jump table, at
  endbr64
  jmp *\table+\at(%rip)
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
