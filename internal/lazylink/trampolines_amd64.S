/* trampolines_amd64.S: see trampolines.inc.h. */
#include "nvml_symbols.h"

.macro jump table, at
  endbr64
  jmp *\table+\at(%rip)
.endm

#include "trampolines.inc.h"

.set at, 0
#define X(name) entry name, lazylink_nvml_table, at; .set at, at + 8;
NVML_FUNCTIONS(X)
NVML_TEXTS(X)
