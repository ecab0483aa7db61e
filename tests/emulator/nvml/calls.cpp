// calls.cpp: a libnvidia-ml.so.1 with the functions that internal/topo calls through go-nvml. The declarations are written from
// nvml.h and share none with the library under test. With NO_NVLINK it is the library of a driver without functions of NVLink.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "../skin/record.hpp"
#include "machine.hpp"

namespace {

enum Return {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7
};

struct Device {
  int gpu;
  int instance;  // of Machine::instances; -1: the GPU itself
};

struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

struct Memory {
  unsigned long long total, free, used;
};

int started = 0;

// Handles are pointers into this table: GPUs, then instances.
std::vector<Device> &handles() {
  static std::vector<Device> table = [] {
    std::vector<Device> made;
    const auto &m = nvml::machine();
    for (size_t i = 0; i < m.gpus.size(); i++) made.push_back({static_cast<int>(i), -1});
    for (size_t i = 0; i < m.instances.size(); i++) made.push_back({m.instances[i].first, static_cast<int>(i)});
    return made;
  }();
  return table;
}

const nvml::Gpu &of(const Device *device) { return nvml::machine().gpus[static_cast<size_t>(device->gpu)]; }

int start() {
  if (nvml::machine().init != 0) return nvml::machine().init;
  started++;
  return kSuccess;
}

int text(char *to, unsigned length, const std::string &value) {
  if (value.empty()) return kNotSupported;
  if (value.size() >= length) return kInsufficientSize;
  std::memcpy(to, value.c_str(), value.size() + 1);
  return kSuccess;
}

// NVML writes eight digits of the domain, and capital letters.
int pci(const nvml::Gpu &g, PciInfo *info) {
  std::memset(info, 0, sizeof *info);
  unsigned function = 0;
  if (std::sscanf(g.address.c_str(), "%x:%x:%x.%x", &info->domain, &info->bus, &info->device, &function) != 4) {
    return kNotSupported;
  }
  std::snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain, info->bus, info->device);
  std::snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.%X", info->domain, info->bus, info->device, function);
  return kSuccess;
}

std::pair<int, int> both(const Device *a, const Device *b) { return std::minmax(a->gpu, b->gpu); }

}  // namespace

// Each function begins with its arguments, which are written down.
#define RECORD(...) skin::record(__func__ __VA_OPT__(, ) __VA_ARGS__)

extern "C" {

int nvmlInit() {
  RECORD();
  return start();
}
int nvmlInit_v2() {
  RECORD();
  return start();
}
int nvmlInitWithFlags(unsigned flags) {
  RECORD(flags);
  return start();
}
int nvmlShutdown() {
  RECORD();
  return started > 0 ? (started--, kSuccess) : kUninitialized;
}

const char *nvmlErrorString(int code) {
  RECORD(code);
  switch (code) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kNotSupported:
      return "Not Supported";
    case kNoPermission:
      return "Insufficient Permissions";
    case 9:
      return "Driver Not Loaded";
    case 18:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  RECORD(count);
  if (started <= 0) return kUninitialized;
  *count = static_cast<unsigned>(nvml::machine().gpus.size());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
  RECORD(index, device);
  if (started <= 0) return kUninitialized;
  if (index >= nvml::machine().gpus.size()) return kInvalidArgument;
  if (nvml::machine().gpus[index].refused) return kNoPermission;
  *device = &handles()[index];
  return skin::given(kSuccess, *device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
  RECORD(uuid, device);
  skin::record_text("text", uuid);
  if (started <= 0) return kUninitialized;
  for (auto &each : handles()) {
    const bool whole = each.instance < 0;
    const auto &known = whole ? of(&each).uuid : nvml::machine().instances[static_cast<size_t>(each.instance)].second;
    if (known == uuid) {
      *device = &each;
      return skin::given(kSuccess, *device);
    }
  }
  return kNotFound;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *instance, Device **device) {
  RECORD(instance, device);
  if (instance->instance < 0) return kInvalidArgument;
  *device = &handles()[static_cast<size_t>(instance->gpu)];
  return skin::given(kSuccess, *device);
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
  RECORD(device, index);
  *index = static_cast<unsigned>(device->gpu);
  return kSuccess;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
  RECORD(device, name, length);
  return text(name, length, of(device).name);
}
int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
  RECORD(device, uuid, length);
  return text(uuid, length, of(device).uuid);
}
int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
  RECORD(device, info);
  return pci(of(device), info);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
  RECORD(device, memory);
  if (of(device).memory == 0) return kNotSupported;
  *memory = {of(device).memory, of(device).memory, 0};
  return kSuccess;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
  RECORD(device, major, minor);
  if (of(device).major == 0) return kNotSupported;
  *major = of(device).major;
  *minor = of(device).minor;
  return kSuccess;
}

int nvmlDeviceGetNumaNodeId(Device *device, unsigned *node) {
  RECORD(device, node);
  if (of(device).node < 0) return kNotSupported;
  *node = static_cast<unsigned>(of(device).node);
  return kSuccess;
}

int nvmlDeviceGetCpuAffinity(Device *device, unsigned words, unsigned long *mask) {
  RECORD(device, words, mask);
  std::memset(mask, 0, words * sizeof *mask);
  for (const unsigned cpu : of(device).cpus) {
    if (cpu / 64 >= words) return kInsufficientSize;
    mask[cpu / 64] |= 1ul << cpu % 64;
  }
  return of(device).cpus.empty() ? kNotSupported : kSuccess;
}

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, int *level) {
  RECORD(one, other, level);
  const auto found = nvml::machine().paths.find(both(one, other));
  const bool near = of(one).node == of(other).node;
  *level = one->gpu == other->gpu ? 0 : found != nvml::machine().paths.end() ? found->second : near ? 40 : 50;
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(Device *one, Device *other, int index, int *status) {
  RECORD(one, other, index, status);
  *status = nvml::machine().apart.count(both(one, other)) != 0 ? 1 : 0;  // the chipset does not support it
  return kSuccess;
}

#ifndef NO_NVLINK
int nvmlDeviceGetNvLinkState(Device *device, unsigned link, int *state) {
  RECORD(device, link, state);
  if (link >= of(device).links()) return kInvalidArgument;
  *state = 1;
  return kSuccess;
}

int nvmlDeviceGetNvLinkVersion(Device *device, unsigned link, unsigned *version) {
  RECORD(device, link, version);
  if (link >= of(device).links() || of(device).version == 0) return kNotSupported;
  *version = of(device).version;
  return kSuccess;
}

// Links to switches come first.
int nvmlDeviceGetNvLinkRemoteDeviceType(Device *device, unsigned link, int *type) {
  RECORD(device, link, type);
  if (link >= of(device).links()) return kInvalidArgument;
  *type = link < of(device).switches ? 2 : 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *info) {
  RECORD(device, link, info);
  const auto &g = of(device);
  if (link < g.switches || link >= g.links()) return kNotSupported;
  return pci(nvml::machine().gpus[static_cast<size_t>(g.bridges[link - g.switches])], info);
}
#endif

}  // extern "C"
