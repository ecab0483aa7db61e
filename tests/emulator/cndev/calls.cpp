// calls.cpp: a libcndev.so of the machine in the text file that EMULATOR_CNDEV names. The declarations are written from the
// documentation in Cambricon's public cndev.h and share none with the library under test. A line of the file is one of
//
//   # a comment
//   init 1                   cndevInit fails with this number
//   mlu aaaa 0000:1a:00.0    a device: its UUID and PCI address; devices are numbered in the order of their lines
//   link 0 3 1 bbbb          link 3 of device 0: 1 if it is active, and the UUID at its other end; "-" if the driver does not tell it
//
// With WITH_HANDLES a device is known by a handle that is not its index, as in version 6 of the interface.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Result {
  kSuccess = 0,
  kUnsupportedVersion = 3,
  kUninitialized = 4,
  kInvalidArgument = 5,
  kInvalidDevice = 6,
  kUnknown = 7,
  kInvalidLink = 11,
};

struct Link {
  int active;
  std::string uuid;
};

struct Device {
  std::string uuid, address;
  std::map<int, Link> links;
};

struct Machine {
  int init = 0;
  std::vector<Device> devices;
};

Machine read() {
  Machine m;
  const char *path = std::getenv("EMULATOR_CNDEV");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, uuid, address;
    size_t device = 0;
    int link = 0, active = 0;
    if (!(words >> word) || word[0] == '#') continue;
    if (word == "init" && words >> m.init) continue;
    if (word == "mlu" && words >> uuid >> address) {
      m.devices.push_back({uuid, address, {}});
    } else if (word == "link" && words >> device >> link >> active >> uuid && device < m.devices.size()) {
      m.devices[device].links[link] = {active, uuid};
    } else {
      std::fprintf(stderr, "emulated CNDev: %s: line \"%s\"\n", path, line.c_str());
      std::abort();
    }
  }
  return m;
}

const Machine &machine() {
  static const Machine known = read();
  return known;
}

bool started = false;

#ifdef WITH_HANDLES
constexpr int kFirst = 100;
#else
constexpr int kFirst = 0;
#endif

// What is wrong with a call, and the device if nothing is.
Result look(const void *structure, int device, const Device **found) {
  if (!started) return kUninitialized;
  if (structure == nullptr) return kInvalidArgument;
  const int version = *static_cast<const int *>(structure);
  if (version < 1 || version > 6) return kUnsupportedVersion;
  if (device < kFirst || device >= kFirst + static_cast<int>(machine().devices.size())) return kInvalidDevice;
  *found = &machine().devices[static_cast<size_t>(device - kFirst)];
  return kSuccess;
}

template <size_t n>
void write(uint8_t (&to)[n], const std::string &text) {
  std::memset(to, 0, n);
  std::memcpy(to, text.data(), std::min(n, text.size()));
}

}  // namespace

extern "C" {

struct cndevCardInfo_t {
  int version;
  unsigned number;
};

struct cndevUUID_t {
  int version;
  uint8_t uuid[37];
  uint64_t ncsUUID64;
};

struct cndevPCIeInfo_t {
  int version;
  unsigned subsystemId, deviceId;
  uint16_t vendor, subsystemVendor;
  unsigned domain, bus, device, function;
  const char *physicalSlot;
  int slotID;
};

struct cndevMLULinkStatus_t {
  int version, isActive, serdesState, cableState;
};

struct cndevMLULinkRemoteInfo_t {
  int version;
  uint64_t mcSn, baSn;
  uint32_t slotId, portId;
  uint8_t devIp[16];
  uint8_t uuid[37];
  uint32_t devIpVersion, isIpValid;
  int32_t connectType;
  uint64_t ncsUUID64;
  uint8_t mac_addr[6];
  char port_name[256];
};

int cndevInit(int reserved) {
  if (reserved != 0) return kInvalidArgument;
  started = machine().init == 0;
  return machine().init;
}

int cndevGetDeviceCount(cndevCardInfo_t *cardNum) {
  if (!started) return kUninitialized;
  if (cardNum->version < 1 || cardNum->version > 6) return kUnsupportedVersion;
  cardNum->number = static_cast<unsigned>(machine().devices.size());
  return kSuccess;
}

#ifdef WITH_HANDLES
int cndevGetDeviceHandleByIndex(int index, int *handle) {
  *handle = kFirst + index;
  return kSuccess;
}
#endif

int cndevGetUUID(cndevUUID_t *uuidInfo, int device) {
  const Device *found = nullptr;
  if (const auto wrong = look(uuidInfo, device, &found)) return wrong;
  write(uuidInfo->uuid, found->uuid);
  uuidInfo->ncsUUID64 = ~0ull;
  return kSuccess;
}

int cndevGetPCIeInfo(cndevPCIeInfo_t *deviceInfo, int device) {
  const Device *found = nullptr;
  if (const auto wrong = look(deviceInfo, device, &found)) return wrong;
  deviceInfo->vendor = 0xcabc;
  deviceInfo->physicalSlot = "1";
  deviceInfo->slotID = 1;
  std::sscanf(found->address.c_str(), "%x:%x:%x.%x", &deviceInfo->domain, &deviceInfo->bus, &deviceInfo->device,
              &deviceInfo->function);
  return kSuccess;
}

int cndevGetMLULinkPortNumber(int device) {
  const int version = 6;
  const Device *found = nullptr;
  if (look(&version, device, &found) != kSuccess) return 0;
  return found->links.empty() ? 0 : found->links.rbegin()->first + 1;
}

int cndevGetMLULinkStatus(cndevMLULinkStatus_t *status, int device, int link) {
  const Device *found = nullptr;
  if (const auto wrong = look(status, device, &found)) return wrong;
  const auto one = found->links.find(link);
  if (one == found->links.end()) return kInvalidLink;
  status->isActive = one->second.active;
  status->serdesState = status->cableState = 1;
  return kSuccess;
}

int cndevGetMLULinkRemoteInfo(cndevMLULinkRemoteInfo_t *remoteinfo, int device, int link) {
  const Device *found = nullptr;
  if (const auto wrong = look(remoteinfo, device, &found)) return wrong;
  const auto one = found->links.find(link);
  if (one == found->links.end()) return kInvalidLink;
  if (one->second.uuid == "-") return kUnknown;
  remoteinfo->mcSn = remoteinfo->baSn = ~0ull;
  std::memset(remoteinfo->devIp, 0xff, sizeof remoteinfo->devIp);
  std::memset(remoteinfo->port_name, 'x', sizeof remoteinfo->port_name);
  write(remoteinfo->uuid, one->second.uuid);
  return kSuccess;
}

}  // extern "C"
