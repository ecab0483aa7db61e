/* hosts.h: puts ranks that are processes on several hosts. */
#pragma once
#include <stdlib.h>

/* Puts a rank on the host that the variable TEST_HOSTS has at its place, such as 0011. Without the variable all ranks are on one.
 * Requires: the rank's process has called nothing of the library. */
static inline void take_host(int rank) {
  const char *hosts = getenv("TEST_HOSTS");
  if (hosts == NULL) return;
  const char host[] = {'h', hosts[rank], 0};
  setenv("SAGECOMM_HOSTID", host, 1);
}
