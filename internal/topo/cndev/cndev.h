/* cndev.h declares what this library calls of CNDev, the management library of Cambricon's driver, libcndev.so. The declarations are our
 * own, after cndev.h of Cambricon's public repositories (cambricon-k8s-device-plugin, mlu-exporter). Functions return an
 * int, 0 for success, unless another meaning stands below. Every structure begins with the version of the interface, which the caller
 * sets; later versions append to the structures, for which there is room. */
#ifndef SAGECOMM_CNDEV_H
#define SAGECOMM_CNDEV_H

#include <stddef.h>
#include <stdint.h>

enum {
  cndev_version = 5, /* the oldest with all of this */
  cndev_uuid_bytes = 37,
  cndev_link_up = 1,
  cndev_most_links = 64 /* more than any device has */
};

typedef struct cndev_count {
  int32_t version;
  uint32_t devices;
  uint8_t room[248];
} cndev_count;

typedef struct cndev_uuid {
  int32_t version;
  uint8_t uuid[cndev_uuid_bytes];
  uint8_t room[1024];
} cndev_uuid;

typedef struct cndev_pci {
  int32_t version;
  uint32_t subsystem, device_id;
  uint16_t vendor, subsystem_vendor;
  uint32_t domain, bus, slot, function;
  uint8_t room[1024];
} cndev_pci;

typedef struct cndev_link {
  int32_t version;
  uint32_t active, serdes;
  uint8_t room[1024];
} cndev_link;

typedef struct cndev_remote {
  int32_t version;
  uint64_t sn, base_sn;
  uint32_t slot, port;
  uint8_t ip[16], uuid[cndev_uuid_bytes];
  uint8_t room[1024];
} cndev_remote;

/* A device is an index, or a handle in libraries that have the last function. cndevGetMLULinkPortNumber returns a number. */
#define CNDEV_FUNCTIONS(X)                                                                                    \
  X(cndevInit, (int32_t reserved), (reserved))                                                                \
  X(cndevGetDeviceCount, (cndev_count * count), (count))                                                      \
  X(cndevGetUUID, (cndev_uuid * uuid, int32_t device), (uuid, device))                                        \
  X(cndevGetPCIeInfo, (cndev_pci * info, int32_t device), (info, device))                                     \
  X(cndevGetMLULinkPortNumber, (int32_t device), (device))                                                    \
  X(cndevGetMLULinkStatus, (cndev_link * status, int32_t device, int32_t link), (status, device, link))       \
  X(cndevGetMLULinkRemoteInfo, (cndev_remote * remote, int32_t device, int32_t link), (remote, device, link)) \
  X(cndevGetDeviceHandleByIndex, (int32_t index, int32_t *device), (index, device))

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct cndev_table {
  CNDEV_FUNCTIONS(X)
} cndev_table;
#undef X

extern cndev_table cndev;
extern const char *const cndev_names[];
extern const size_t cndev_functions;

#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return cndev.name arguments; }
CNDEV_FUNCTIONS(X)
#undef X

#endif
