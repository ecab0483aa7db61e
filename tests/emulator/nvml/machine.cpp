#include "machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace nvml {
namespace {

const std::map<std::string, int> kLevels = {{"internal", 0}, {"PIX", 10},  {"PXB", 20},
                                            {"PHB", 30},     {"NODE", 40}, {"SYS", 50}};

std::vector<unsigned> cpu_list(const std::string &text) {
  std::vector<unsigned> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const auto first = std::stoul(part), last = dash == std::string::npos ? first : std::stoul(part.substr(dash + 1));
    for (auto cpu = first; cpu <= last; cpu++) cpus.push_back(static_cast<unsigned>(cpu));
  }
  return cpus;
}

Gpu gpu(std::istringstream &line, size_t number) {
  Gpu g;
  g.uuid = "GPU-0000000" + std::to_string(number) + "-0000-0000-0000-000000000000";
  for (std::string item; line >> item;) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) throw std::invalid_argument(item);
    const auto key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "address") {
      g.address = value;
    } else if (key == "uuid") {
      g.uuid = value;
    } else if (key == "memory") {
      g.memory = std::stoull(value);
    } else if (key == "capability") {
      g.major = std::stoi(value);
      g.minor = std::stoi(value.substr(value.find('.') + 1));
    } else if (key == "node") {
      g.node = std::stoi(value);
    } else if (key == "cpus") {
      g.cpus = cpu_list(value);
    } else if (key == "switch") {
      g.switches = static_cast<unsigned>(std::stoul(value));
    } else if (key == "version") {
      g.version = static_cast<unsigned>(std::stoul(value));
    } else if (key == "name") {
      std::string rest;
      std::getline(line, rest);
      g.name = value + rest;
    } else {
      throw std::invalid_argument(key);
    }
  }
  return g;
}

void add(Machine &m, const std::string &text) {
  std::istringstream line(text);
  std::string word, level;
  int a = 0, b = 0, count = 0;
  if (!(line >> word) || word[0] == '#') return;
  const auto pair = [&]() -> std::pair<int, int> {
    if (!(line >> a >> b)) throw std::invalid_argument(word);
    (void)m.gpus.at(static_cast<size_t>(a)), (void)m.gpus.at(static_cast<size_t>(b));
    return std::minmax(a, b);
  };
  if (word == "init" && line >> m.init) return;
  if (word == "gpu") {
    m.gpus.push_back(gpu(line, m.gpus.size()));
  } else if (word == "mig" && line >> a >> level) {
    (void)m.gpus.at(static_cast<size_t>(a));
    m.instances.emplace_back(a, level);
  } else if (word == "path") {
    const auto key = pair();
    line >> level;
    m.paths[key] = kLevels.at(level);
  } else if (word == "bridge") {
    pair();
    if (!(line >> count)) throw std::invalid_argument(word);
    for (int i = 0; i < count; i++) {
      m.gpus[static_cast<size_t>(a)].bridges.push_back(b);
      m.gpus[static_cast<size_t>(b)].bridges.push_back(a);
    }
  } else if (word == "apart") {
    m.apart[pair()] = true;
  } else if (word == "refused" && line >> a) {
    m.gpus.at(static_cast<size_t>(a)).refused = true;
  } else {
    throw std::invalid_argument(word);
  }
}

Machine read() {
  Machine m;
  const char *path = std::getenv("EMULATOR_NVML");
  if (path == nullptr) return m;
  std::ifstream file(path);
  std::string line;
  try {
    if (!file) throw std::invalid_argument("the file cannot be opened");
    while (std::getline(file, line)) add(m, line);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "emulated NVML: %s: line \"%s\": %s\n", path, line.c_str(), error.what());
    std::abort();
  }
  return m;
}

}  // namespace

const Machine &machine() {
  static const Machine known = read();
  return known;
}

}  // namespace nvml
