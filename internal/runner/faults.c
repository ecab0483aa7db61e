/* faults.c: the hook of faults.h, which only a build with the tag `faults` has. */
#include "faults.h"

#ifdef SCR_FAULTS
void (*_Atomic sagecomm_fault_hook)(int point);
#endif
