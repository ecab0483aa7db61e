/* group.c: group calls. */
#include "hccl.h"

HcclResult HcclGroupStart(void) {
  group_start();
  return HCCL_SUCCESS;
}

HcclResult HcclGroupEnd(void) { return group_end(); }
