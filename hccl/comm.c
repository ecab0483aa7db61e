/* comm.c: functions for communicators that exist, settings, and errors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hccl.h"

/* The engine of Huawei's library must not call this one: internal/engine/hccl looks for this symbol. */
int sagecomm_hccl_facade = 1;

/* HCCL has no function that gives the text of an error, so each text is printed. CANN's own setting for no messages
 * holds here too. */
void facade_print(const char *text) {
  enum { NONE = 4 };
  const char *level = getenv("ASCEND_GLOBAL_LOG_LEVEL");
  if (level == NULL || atoi(level) != NONE) fprintf(stderr, "HCCL WARNING %s\n", text);
}

/* The text of this thread's last error, if it is about that code. Programs print it beside what they were doing. */
const char *HcclGetErrorString(HcclResult code) {
  static const char *const texts[HCCL_E_RESERVED] = {[HCCL_SUCCESS] = "no error",
                                                     [HCCL_E_PARA] = "parameter error",
                                                     [HCCL_E_PTR] = "empty pointer",
                                                     [HCCL_E_MEMORY] = "memory error",
                                                     [HCCL_E_INTERNAL] = "internal error",
                                                     [HCCL_E_NOT_SUPPORT] = "not support feature",
                                                     [HCCL_E_NOT_FOUND] = "not found specific resource",
                                                     [HCCL_E_UNAVAIL] = "resource unavailable",
                                                     [HCCL_E_SYSCALL] = "call system interface error",
                                                     [HCCL_E_TIMEOUT] = "timeout",
                                                     [HCCL_E_OPEN_FILE_FAILURE] = "open file fail",
                                                     [HCCL_E_TCP_CONNECT] = "tcp connect fail",
                                                     [HCCL_E_ROCE_CONNECT] = "roce connect fail",
                                                     [HCCL_E_TCP_TRANSFER] = "tcp transfer fail",
                                                     [HCCL_E_ROCE_TRANSFER] = "roce transfer fail",
                                                     [HCCL_E_RUNTIME] = "call runtime api fail",
                                                     [HCCL_E_DRV] = "call driver api fail",
                                                     [HCCL_E_PROFILING] = "call profiling api fail",
                                                     [HCCL_E_CCE] = "call cce api fail",
                                                     [HCCL_E_NETWORK] = "call network api fail",
                                                     [HCCL_E_AGAIN] = "try again",
                                                     [HCCL_E_REMOTE] = "a peer has failed",
                                                     [HCCL_E_SUSPENDING] = "the communicator is suspended",
                                                     [HCCL_E_OPRETRY_FAIL] = "retry constraint",
                                                     [HCCL_E_OOM] = "out of memory"};
  const char *text = code == HCCL_SUCCESS ? NULL : error_behind(code);
  if (text != NULL) return text;
  text = (int)code >= 0 && code < HCCL_E_RESERVED ? texts[code] : NULL;
  return text != NULL ? text : "unknown result code";
}

HcclResult HcclCommDestroy(HcclComm comm) { return comm_end(comm, "HcclCommDestroy", NULL); }

HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult *error) {
  return comm_state(comm, "HcclGetCommAsyncError", error);
}

HcclResult HcclGetRankSize(HcclComm comm, uint32_t *size) {
  return comm_ask(comm, "HcclGetRankSize", ASK_SIZE, (int *)size);
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank) {
  return comm_ask(comm, "HcclGetRankId", ASK_RANK, (int *)rank);
}

HcclResult HcclGetCommName(HcclComm comm, char *name) {
  if (name == NULL) return fail(NULL, HCCL_E_PTR, "sagecomm: HcclGetCommName: commName is NULL");
  HcclResult result = comm_hold(comm, "HcclGetCommName");
  if (result != HCCL_SUCCESS) return result;
  memcpy(name, ((comm_t)comm)->name, HCCL_NAME_BYTES);
  comm_release(comm);
  return HCCL_SUCCESS;
}

/* The fields of a configuration up to the timeout of operations may be set. */
uint32_t HcclGetCommConfigCapability(void) { return HCCL_CONFIG_EXEC_TIMEOUT + 1; }

/* Results are always the same bits for the same ranks and lengths, so the setting is kept for whoever asks. */
static int32_t deterministic = 1;

HcclResult HcclSetConfig(int32_t config, HcclConfigValue value) {
  if (config != HCCL_DETERMINISTIC) {
    return fail(NULL, HCCL_E_NOT_SUPPORT,
                "sagecomm: HcclSetConfig: setting %" PRId32 " is not supported: there is HCCL_DETERMINISTIC only",
                config);
  }
  __atomic_store_n(&deterministic, value.value, __ATOMIC_RELAXED);
  return HCCL_SUCCESS;
}

HcclResult HcclGetConfig(int32_t config, HcclConfigValue *value) {
  if (value == NULL) return fail(NULL, HCCL_E_PTR, "sagecomm: HcclGetConfig: configValue is NULL");
  if (config != HCCL_DETERMINISTIC) {
    return fail(NULL, HCCL_E_NOT_SUPPORT,
                "sagecomm: HcclGetConfig: setting %" PRId32 " is not supported: there is HCCL_DETERMINISTIC only",
                config);
  }
  value->value = __atomic_load_n(&deterministic, __ATOMIC_RELAXED);
  return HCCL_SUCCESS;
}
