/* dcmi.h declares what this library calls of DCMI, the management library of Huawei's NPU driver, libdcmi.so. The declarations are
 * our own, after dcmi_interface_api.h (github.com/Ascend/ascend-docker-runtime, runtime/dcmi), and for the last one after Huawei's
 * DCMI API Reference. All functions return an int, 0 for success. A device is a chip of a card. */
#ifndef SAGECOMM_DCMI_H
#define SAGECOMM_DCMI_H

#include <stddef.h>
#include <stdint.h>

typedef struct dcmi_pci { /* struct dcmi_pcie_info_all, 64 bytes */
  uint32_t vendor, subvendor, device, subdevice;
  int32_t domain;
  uint32_t bus, slot, function;
  uint8_t reserved[32];
} dcmi_pci;

#define DCMI_FUNCTIONS(X)                                                                                       \
  X(dcmi_init, (void), ())                                                                                      \
  X(dcmi_get_card_list, (int32_t *count, int32_t *cards, int32_t length), (count, cards, length))               \
  X(dcmi_get_device_num_in_card, (int32_t card, int32_t *count), (card, count))                                 \
  X(dcmi_get_device_pcie_info_v2, (int32_t card, int32_t device, dcmi_pci *info), (card, device, info))         \
  X(dcmi_get_topo_info_by_device_id, (int32_t a, int32_t device_a, int32_t b, int32_t device_b, int32_t *type), \
    (a, device_a, b, device_b, type))

enum {
  dcmi_most_cards = 64, /* MAX_CARD_NUM */
  /* DCMI_TOPO_TYPE_HCCS and _HCCS_SW. Between them the numbers differ from release to release. */
  dcmi_hccs = 3,
  dcmi_hccs_switch = 7
};

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct dcmi_table {
  DCMI_FUNCTIONS(X)
} dcmi_table;
#undef X

extern dcmi_table dcmi;
extern const char *const dcmi_names[];
extern const size_t dcmi_functions;

#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return dcmi.name arguments; }
DCMI_FUNCTIONS(X)
#undef X

#endif
