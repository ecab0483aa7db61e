// machine.hpp: the machine that the emulated NVML describes, read from the text file that EMULATOR_NVML names. A line is one of
//
//   # a comment
//   init 9                           nvmlInit fails with this number of nvmlReturn_t
//   gpu address=0000:1b:00.0 ...     a GPU; GPUs are numbered in the order of their lines
//   mig 0 MIG-...                    an instance of GPU 0, with its UUID
//   path 0 1 PIX                     the closest common ancestor of two GPUs, as `nvidia-smi topo -m` names it
//   bridge 0 1 12                    twelve NVLinks between two GPUs
//   apart 0 1                        two GPUs that do not read each other's memory
//   refused 1                        a GPU that this user may not open
//
// A gpu has the keys address, uuid, memory (bytes), capability, node, cpus (a list of the kernel), switch (how many NVLinks lead to
// NVSwitches), version (nvmlNvlinkVersion of its links) and, last, name, which takes the rest of the line. A path that is not
// given is NODE inside a NUMA node and SYS between nodes. Without the variable the machine has no GPUs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nvml {

struct Gpu {
  std::string address, uuid, name;
  uint64_t memory = 0;
  int major = 0, minor = 0;
  int node = -1;  // -1: the driver does not know it
  std::vector<unsigned> cpus;
  unsigned switches = 0, version = 0;
  std::vector<int> bridges;  // the GPU at the other end of each link that leads to a GPU
  bool refused = false;

  unsigned links() const { return switches + static_cast<unsigned>(bridges.size()); }
};

struct Machine {
  int init = 0;
  std::vector<Gpu> gpus;
  std::vector<std::pair<int, std::string>> instances;  // MIG: its GPU and its UUID
  std::map<std::pair<int, int>, int> paths;            // nvmlGpuTopologyLevel_t of pairs, the lower number first
  std::map<std::pair<int, int>, bool> apart;
};

// The machine of this process. A file that cannot be read, or a line that is none of these, ends the process with a message.
const Machine &machine();

}  // namespace nvml
