#include "config.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace emulator {
namespace {

uint64_t variable(const char *name, uint64_t otherwise, uint64_t most) {
  const char *text = getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  uint64_t number = 0;
  if (!parse_number(text, &number) || number > most) bad_variable(name, text, "a number");
  return number;
}

}  // namespace

const char *name(Schedule schedule) {
  switch (schedule) {
    case Schedule::lazy:
      return "lazy";
    case Schedule::eager:
      return "eager";
    case Schedule::random:
      return "random";
    default:
      return "threaded";
  }
}

bool parse_number(const char *text, uint64_t *number) {
  if (*text < '0' || *text > '9') return false;
  char *end = nullptr;
  errno = 0;
  *number = strtoull(text, &end, 10);
  return errno == 0 && *end == '\0';
}

bool parse_bytes(const char *text, size_t *bytes) {
  if (*text < '0' || *text > '9') return false;
  char *end = nullptr;
  errno = 0;
  uint64_t number = strtoull(text, &end, 10);
  const char *suffixes = "KMG";
  int shift = 0;
  if (*end != '\0') {
    const char *suffix = strchr(suffixes, *end);
    if (suffix == nullptr || end[1] != '\0') return false;
    shift = 10 * static_cast<int>(suffix - suffixes + 1);
  }
  *bytes = static_cast<size_t>(number) << shift;
  return errno == 0 && *bytes >> shift == number;
}

void bad_variable(const char *variable, const char *value, const char *expected) {
  fprintf(stderr, "emulator: %s=%s: expected %s\n", variable, value, expected);
  abort();
}

Config read_config() {
  Config config;
  const char *schedule = getenv("EMULATOR_SCHEDULE");
  if (schedule != nullptr && *schedule != '\0') {
    bool known = false;
    for (Schedule s : {Schedule::lazy, Schedule::eager, Schedule::random, Schedule::threaded})
      if (strcmp(schedule, name(s)) == 0) {
        config.schedule = s;
        known = true;
      }
    if (!known) bad_variable("EMULATOR_SCHEDULE", schedule, "lazy, eager, random or threaded");
  }
  config.seed = variable("EMULATOR_SEED", config.seed, UINT64_MAX);
  config.devices = static_cast<int>(variable("EMULATOR_DEVICES", static_cast<uint64_t>(config.devices), 64));
  config.queues = static_cast<int>(variable("EMULATOR_QUEUES", static_cast<uint64_t>(config.queues), 1U << 10));
  config.stream_room = variable("EMULATOR_STREAM_ROOM", config.stream_room, 1U << 30);
  config.events = variable("EMULATOR_EVENTS", config.events, 1U << 30);
  config.polls = static_cast<int>(variable("EMULATOR_POLLS", static_cast<uint64_t>(config.polls), 1U << 30));
  config.kick_ms = static_cast<int>(variable("EMULATOR_KICK_MS", static_cast<uint64_t>(config.kick_ms), 1U << 30));
  config.stall_s = static_cast<int>(variable("EMULATOR_STALL_S", static_cast<uint64_t>(config.stall_s), 1U << 20));
  config.stream_waits = variable("EMULATOR_STREAM_WAITS", 0, 1) != 0;
  const char *memory = getenv("EMULATOR_MEMORY");
  if (memory != nullptr && *memory != '\0' && !parse_bytes(memory, &config.memory))
    bad_variable("EMULATOR_MEMORY", memory, "a number of bytes such as 512M");
  const char *clocks = getenv("EMULATOR_HOST_CLOCKS");
  if (clocks != nullptr && *clocks != '\0') {
    config.thread_clocks = strcmp(clocks, "thread") == 0;
    if (!config.thread_clocks && strcmp(clocks, "shared") != 0)
      bad_variable("EMULATOR_HOST_CLOCKS", clocks, "thread or shared");
  }
  return config;
}

}  // namespace emulator
