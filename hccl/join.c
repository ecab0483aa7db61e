/* join.c: functions that make communicators. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hccl.h"

/* ---- settings ---- */

int64_t hccl_seconds(const char *variable, int64_t otherwise) {
  const char *text = getenv(variable);
  char *end = NULL;
  long seconds = text != NULL ? strtol(text, &end, 10) : 0;
  if (text == NULL || end == text || *end != 0 || seconds < 0 || seconds > INT32_MAX) return otherwise;
  return seconds;
}

int64_t hccl_operations_ns(int64_t seconds) {
  return (seconds > 0 ? seconds : INT64_C(36525) * 86400) * SECOND; /* none: a hundred years */
}

#define HAS(config, field) \
  ((config) != NULL && (config)->size >= offsetof(HcclCommConfig, field) + sizeof(config)->field)
#define VERSION_OF_EXEC_TIMEOUT 8 /* in older versions its place may be padding */

static HcclResult check_config(const HcclCommConfig *config, const char *function) {
  if (config == NULL || (HAS(config, version) && config->magic == HCCL_CONFIG_MAGIC)) return HCCL_SUCCESS;
  return fail(NULL, HCCL_E_PARA, "sagecomm: %s: config is not initialised by HcclCommConfigInit()", function);
}

/* Takes the name and the timeout out of a configuration. The rest is about HCCL's buffers, networks and kernels. */
static void configure(comm_t comm, const HcclCommConfig *config) {
  if (HAS(config, name) && config->name[0] != 0) {
    snprintf(comm->name, sizeof comm->name, "%.*s", HCCL_NAME_BYTES - 1, config->name);
  }
  if (HAS(config, exec_timeout) && config->version >= VERSION_OF_EXEC_TIMEOUT && config->exec_timeout >= 0) {
    comm->operations_ns = hccl_operations_ns(config->exec_timeout);
  }
}

/* ---- functions ---- */

/* The root info begins with a unique id of the core. */
HcclResult HcclGetRootInfo(HcclRootInfo *root) {
  if (root == NULL) return fail(NULL, HCCL_E_PTR, "sagecomm: HcclGetRootInfo: rootInfo is NULL");
  memset(root, 0, sizeof *root);
  return unique_id((uint8_t *)root->internal);
}

static HcclResult join(const char *function, uint32_t size, const HcclRootInfo *root, uint32_t rank,
                       const HcclCommConfig *config, HcclComm *comm) {
  HcclResult result = check_config(config, function);
  if (result != HCCL_SUCCESS) return refused(result);
  if (size > INT32_MAX || rank > INT32_MAX) {
    return refused(
        fail(NULL, HCCL_E_PARA, "sagecomm: %s: rank %" PRIu32 " of %" PRIu32 " ranks", function, rank, size));
  }
  job *j = NULL;
  result = join_job(function, (comm_t *)comm, (int)size, root == NULL ? NULL : (const uint8_t *)root->internal,
                    (int)rank, true, &j);
  if (result != HCCL_SUCCESS) return refused(result);
  configure(j->comm, config);
  return join_submit(j);
}

HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo *root, uint32_t rank, HcclComm *comm) {
  return join("HcclCommInitRootInfo", size, root, rank, NULL, comm);
}

HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo *root, uint32_t rank,
                                      const HcclCommConfig *config, HcclComm *comm) {
  return join("HcclCommInitRootInfoConfig", size, root, rank, config, comm);
}

HcclResult HcclGetRootInfoScalable(HcclRootInfo *root) { return HcclGetRootInfo(root); }

/* The first root suffices. */
HcclResult HcclCommInitRootInfoScalable(uint32_t size, uint32_t n, const HcclRootInfo *roots, uint32_t rank,
                                        uint32_t more, const HcclCommConfig *config, HcclComm *comm) {
  (void)n, (void)more;
  return join("HcclCommInitRootInfoScalable", size, roots, rank, config, comm);
}

HcclResult HcclCommInitAll(uint32_t n, int32_t *devices, HcclComm *comms) {
  return join_all("HcclCommInitAll", (comm_t *)comms, n > INT32_MAX ? 0 : (int)n, devices);
}

/* Only the ranks of the new communicator call it; one that calls it without ranks is not among them. The communicators
 * of a parent may be made in any order: the id tells them apart. */
HcclResult HcclCreateSubCommConfig(HcclComm *parent, uint32_t n, uint32_t *ranks, uint64_t id, uint32_t rank,
                                   HcclCommConfig *config, HcclComm *made) {
  static const char *const function = "HcclCreateSubCommConfig";
  if (parent == NULL || made == NULL) {
    return refused(fail(NULL, HCCL_E_PTR, "sagecomm: %s: %s is NULL", function, parent == NULL ? "comm" : "subComm"));
  }
  comm_t comm = *parent;
  HcclResult result = check_config(config, function);
  if (result == HCCL_SUCCESS) result = hold_joined(comm, function);
  if (result != HCCL_SUCCESS) return refused(result);
  if (ranks == NULL) {
    comm_release(comm);
    *made = NULL;
    return HCCL_SUCCESS;
  }
  int mine = comm->rank;
  if (n == 0 || n > (uint32_t)comm->size || rank >= n || ranks[rank] != (uint32_t)mine) {
    comm_release(comm);
    return refused(fail(NULL, HCCL_E_PARA,
                        "sagecomm: %s: %" PRIu32 " ranks, of which this one is to be rank %" PRIu32
                        ": expected at most %d, and rank %d of the parent at that place",
                        function, n, rank, comm->size, mine));
  }
  int *copy = malloc(n * sizeof *copy);
  if (copy == NULL) {
    comm_release(comm);
    return refused(out_of_memory(function));
  }
  for (uint32_t i = 0; i < n; i++) copy[i] = ranks[i] > INT32_MAX ? -1 : (int)ranks[i];
  job *j = derive_job(function, comm, JOB_SUBSET, true, true, copy, (int)n, (comm_t *)made);
  if (j == NULL) return refused(HCCL_E_PARA);
  j->label = id;
  snprintf(j->child->name, sizeof j->child->name, "%.80s/%016" PRIx64, comm->name, id);
  configure(j->child, config);
  memcpy(j->name, j->child->name, sizeof j->name);
  return join_submit(j);
}
