/* nvml.c: a libnvidia-ml.so.1 of two GPUs behind one NVSwitch, with the ABI of nvml.h, in go-nvml's form of which a handle is a
 * struct of one pointer. With -DNO_NVLINK it is a driver that has no
 * function of NVLink, with -DNO_START one that does not start. */
#include <stdio.h>
#include <string.h>

#include <nvml.h>

#define LINKS 4

static int started;
static int gpus[2];

static nvmlReturn_t start(void) {
#ifdef NO_START
  return NVML_ERROR_DRIVER_NOT_LOADED;
#endif
  started++;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return start(); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return flags ? NVML_ERROR_INVALID_ARGUMENT : start(); }
nvmlReturn_t nvmlShutdown(void) { return started-- > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }
const char *nvmlErrorString(nvmlReturn_t error) {
  return error == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Another Error";
}

static unsigned number(nvmlDevice_t device) { return (unsigned)((int *)(void *)device.handle - gpus); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
  if (started <= 0) return NVML_ERROR_UNINITIALIZED;
  *count = 2;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  if (index > 1) return NVML_ERROR_INVALID_ARGUMENT;
  device->handle = (void *)&gpus[index];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
  snprintf(name, length, "Emulated GPU %u", number(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
  snprintf(uuid, length, "GPU-%u", number(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x1a + number(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  (void)device;
  *memory = (nvmlMemory_t){.total = 80ull << 30, .free = 80ull << 30};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  (void)device;
  *major = 9;
  *minor = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node) {
  *node = number(device);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask) {
  memset(mask, 0, words * sizeof *mask);
  mask[0] = 3ul << 2 * number(device);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level) {
  *level = one.handle == other.handle ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t *status) {
  (void)one, (void)other;
  *status = index == NVML_P2P_CAPS_INDEX_READ ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

#ifndef NO_NVLINK
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *state) {
  (void)device;
  if (link >= LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  *state = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *type) {
  (void)device, (void)link;
  *type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
  return NVML_SUCCESS;
}
#endif
