// What NCCL knows of a rank's device.
#include <cuda.h>
#include <unistd.h>

#include <cstring>

#include "communicator.hpp"

namespace fake_nccl {

// NCCL compares hosts and devices to find two ranks with one device. NCCL_HOSTID stands for the host.
bool identify(int device, char *text, size_t size) {
  CUuuid uuid;
  if (device < 0) return false;
  if (cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) return false;
  char host[64] = "";
  const char *set = getenv("NCCL_HOSTID");
  if (set != nullptr)
    strncpy(host, set, sizeof host - 1);
  else
    gethostname(host, sizeof host - 1);
  std::string made = std::string(host) + "/";
  for (char byte : uuid.bytes) made += "0123456789abcdef"[byte >> 4 & 15], made += "0123456789abcdef"[byte & 15];
  strncpy(text, made.c_str(), size - 1);
  return true;
}

int current_device() {
  CUdevice device = -1;
  if (cuCtxGetDevice(&device) == CUDA_SUCCESS || emulator::current_device(&device) == emulator::Status::success)
    return device;
  return -1;
}

}  // namespace fake_nccl
