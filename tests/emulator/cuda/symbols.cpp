// Functions by name, and functions of the driver that have one name for several versions.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "driver.hpp"

namespace {

struct Version {
  int since;  // the CUDA version from which on the name without a version means this one
  const char *symbol;
};

// Functions whose versions take different arguments. The newest version of all others serves every caller.
const std::map<std::string, std::vector<Version>> &changed() {
  static const auto *table = new std::map<std::string, std::vector<Version>>{
      {"cuCtxCreate", {{12050, "cuCtxCreate_v4"}, {3020, "cuCtxCreate_v2"}}},
      {"cuStreamGetCaptureInfo", {{12030, "cuStreamGetCaptureInfo_v3"}, {11030, "cuStreamGetCaptureInfo_v2"}}},
      {"cuGetProcAddress", {{12000, "cuGetProcAddress_v2"}, {11030, "cuGetProcAddress"}}},
  };
  return *table;
}

void *find(const std::string &name, int version) {
  static void *self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void *>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  if (emulator::symbol_missing(name.c_str())) return nullptr;
  auto table = changed().find(name);
  if (table != changed().end()) {
    for (const Version &each : table->second)
      if (version >= each.since) return dlsym(self, each.symbol);
    return nullptr;
  }
  for (const char *suffix : {"_v4", "_v3", "_v2", ""})
    if (void *found = dlsym(self, (name + suffix).c_str()); found != nullptr) return found;
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
  skin::record(__func__, name, function, version, flags, status);
  REQUIRE(name != nullptr && function != nullptr, CUDA_ERROR_INVALID_VALUE);
  *function = find(name, version);
  if (status != nullptr)
    *status = *function == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// Tables of functions that NVIDIA's own libraries ask for. Without them these libraries say that they are not initialised.
CUresult cuGetExportTable(const void **table, const CUuuid * /*id*/) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

// The first versions of functions whose later versions take the same arguments.
#undef cuStreamWaitValue32
#undef cuStreamWriteValue32
#undef cuEventElapsedTime
#undef cuDeviceGetUuid
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  skin::record(__func__, stream, at, value, flags);
  return cuStreamWaitValue32_v2(stream, at, value, flags);
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  skin::record(__func__, stream, at, value, flags);
  return cuStreamWriteValue32_v2(stream, at, value, flags);
}
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  skin::record(__func__, milliseconds, from, to);
  return cuEventElapsedTime_v2(milliseconds, from, to);
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  skin::record(__func__, uuid, device);
  return cuDeviceGetUuid_v2(uuid, device);
}

}  // extern "C"
