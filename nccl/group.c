/* group.c: group calls. */
#include "../facade/facade.h"

ncclResult_t ncclGroupStart(void) {
  group_start();
  return ncclSuccess;
}
EXPORTED(GroupStart);

ncclResult_t ncclGroupEnd(void) { return group_end(); }
EXPORTED(GroupEnd);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
  (void)info;
  ncclResult_t result =
      refused(fail(NULL, ncclInvalidUsage,
                   "sagecomm: ncclGroupSimulateEnd is not supported: `python -m sagecomm simulate` predicts "
                   "the times of collectives"));
  if (group_drop()) return result;
  return fail(NULL, ncclInvalidUsage,
              "sagecomm: ncclGroupSimulateEnd: no ncclGroupStart() came before it on this thread");
}
EXPORTED(GroupSimulateEnd);
