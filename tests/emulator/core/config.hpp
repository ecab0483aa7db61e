// config.hpp reads the environment variables of the emulator, once in a process. Config lists them: EMULATOR_ and the name of
// the field in capitals, unless its comment gives another name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

enum class Schedule { lazy, eager, random, threaded };
const char *name(Schedule schedule);

struct Config {
  Schedule schedule = Schedule::lazy;
  uint64_t seed = 1;
  int devices = 2;
  size_t memory = size_t{4096} << 20;  // bytes of each device
  int queues = 0;                      // hardware queues of a priority and device; 0: one for each stream
  size_t stream_room = 0;              // tasks of a stream that have not begun, beyond which a call waits; 0: no bound
  size_t events = 0;                   // records of a device that have not run, beyond which one waits; 0: no bound
  int polls = 64;                      // unsuccessful queries of one point until the scheduler works towards it
  int kick_ms = 200;                   // work that nobody waits for runs after this time without progress; 0: never
  int stall_s = 30;                    // a wait that lasts longer prints the state of all streams once
  bool stream_waits = false;           // making a stream waits for the work of the device, as freeing memory does
  bool thread_clocks = true;           // EMULATOR_HOST_CLOCKS: a clock for each thread ("thread"), or one ("shared")
};

// Reads the environment. Ends the process with a sentence if a variable has a bad value.
Config read_config();

// Ends the process with a sentence about the environment.
[[noreturn]] void bad_variable(const char *variable, const char *value, const char *expected);

// Parses a number of bytes with an optional suffix K, M or G. Reports whether the text is one.
bool parse_bytes(const char *text, size_t *bytes);
bool parse_number(const char *text, uint64_t *number);

}  // namespace emulator
