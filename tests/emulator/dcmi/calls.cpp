// calls.cpp: a libdcmi.so of the machine in the text file that EMULATOR_DCMI names. The declarations are written from Huawei's
// DCMI API Reference and share none with the library under test. A line of the file is one of
//
//   # a comment
//   init -8005            dcmi_init fails with this number
//   npu 2 0 0000:c1:00.0  chip 0 of card 2, and its PCI address; chips are numbered in the order of their lines
//   link 0 1 3            two chips and the dcmi_topo_type between them; without a line it is unknown, and the call fails

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidParameter = -8001;
constexpr int kNotSupported = -8255;

struct Chip {
  int card, device;
  std::string address;
};

struct Machine {
  int init = 0;
  std::vector<Chip> chips;
  std::map<std::pair<int, int>, int> links;
};

Machine read() {
  Machine m;
  const char *path = std::getenv("EMULATOR_DCMI");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, address;
    int a = 0, b = 0, type = 0;
    if (!(words >> word) || word[0] == '#') continue;
    if (word == "init" && words >> m.init) continue;
    if (word == "npu" && words >> a >> b >> address) {
      m.chips.push_back({a, b, address});
    } else if (word == "link" && words >> a >> b >> type) {
      m.links[std::minmax(a, b)] = type;
    } else {
      std::fprintf(stderr, "emulated DCMI: %s: line \"%s\"\n", path, line.c_str());
      std::abort();
    }
  }
  return m;
}

const Machine &machine() {
  static const Machine known = read();
  return known;
}

// The number of a chip, -1 if there is none.
int number(int card, int device) {
  const auto &chips = machine().chips;
  const auto found =
      std::find_if(chips.begin(), chips.end(), [&](const Chip &c) { return c.card == card && c.device == device; });
  return found == chips.end() ? -1 : static_cast<int>(found - chips.begin());
}

bool started = false;

}  // namespace

struct dcmi_pcie_info_all {
  unsigned venderid, subvenderid, deviceid, subdeviceid;
  int domain;
  unsigned bdf_busid, bdf_deviceid, bdf_funcid;
  unsigned char reserve[32];
};

extern "C" {

int dcmi_init(void) {
  started = machine().init == 0;
  return machine().init;
}

int dcmi_get_card_list(int *card_num, int *card_list, int list_len) {
  if (!started) return kInvalidParameter;
  *card_num = 0;
  for (const auto &chip : machine().chips) {
    if (std::find(card_list, card_list + *card_num, chip.card) != card_list + *card_num) continue;
    if (*card_num == list_len) return kInvalidParameter;
    card_list[(*card_num)++] = chip.card;
  }
  return 0;
}

int dcmi_get_device_num_in_card(int card_id, int *device_num) {
  const auto &chips = machine().chips;
  *device_num =
      static_cast<int>(std::count_if(chips.begin(), chips.end(), [&](const Chip &c) { return c.card == card_id; }));
  return *device_num > 0 ? 0 : kInvalidParameter;
}

int dcmi_get_device_pcie_info_v2(int card_id, int device_id, dcmi_pcie_info_all *info) {
  const int chip = number(card_id, device_id);
  if (chip < 0) return kInvalidParameter;
  *info = {};
  info->venderid = 0x19e5;
  unsigned domain = 0;
  const auto &address = machine().chips[static_cast<size_t>(chip)].address;
  std::sscanf(address.c_str(), "%x:%x:%x.%x", &domain, &info->bdf_busid, &info->bdf_deviceid, &info->bdf_funcid);
  info->domain = static_cast<int>(domain);
  return 0;
}

int dcmi_get_topo_info_by_device_id(int card_id1, int device_id1, int card_id2, int device_id2, int *topo_type) {
  const int a = number(card_id1, device_id1), b = number(card_id2, device_id2);
  if (a < 0 || b < 0) return kInvalidParameter;
  const auto found = machine().links.find(std::minmax(a, b));
  if (found == machine().links.end()) return kNotSupported;
  *topo_type = found->second;
  return 0;
}

}  // extern "C"
