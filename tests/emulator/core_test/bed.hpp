// bed.hpp runs the body of a test in a process of its own for each schedule, since a process has one schedule and one seed.
#pragma once
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "../core/annotate.h"
#include "../core/runtime.hpp"
#include "check.hpp"

namespace emulator_test {

using emulator::Status;
using emulator::StreamHandle;
using Environment = std::map<std::string, std::string>;

constexpr int child_bound = 60;  // seconds; a test that hangs ends by a signal

// Ends this process by a signal after child_bound.
inline void bound_child() {
  itimerval bound{{0, 0}, {child_bound, 0}};
  setitimer(ITIMER_REAL, &bound, nullptr);
}

// Runs the body in a child process. The test fails unless the child exits with 0.
inline void in_child(const Environment &environment, const std::function<void()> &body) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    bound_child();
    for (const auto &[name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    body();
    exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  fprintf(stderr, "the test failed (%s %d) with", WIFSIGNALED(status) ? "signal" : "exit",
          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  for (const auto &[name, value] : environment) fprintf(stderr, " %s=%s", name.c_str(), value.c_str());
  fprintf(stderr, "\n");
  exit(1);
}

inline void under(const std::string &schedule, const std::function<void()> &body, Environment environment = {}) {
  environment["EMULATOR_SCHEDULE"] = schedule;
  in_child(environment, body);
}

// EMULATOR_SEED gives the first seed, EMULATOR_SEEDS the number of seeds.
inline void under_random_seeds(int count, const std::function<void()> &body, Environment environment = {}) {
  const char *first = getenv("EMULATOR_SEED");
  const char *seeds = getenv("EMULATOR_SEEDS");
  uint64_t begin = first != nullptr ? strtoull(first, nullptr, 10) : 1;
  if (seeds != nullptr) count = std::min(count, atoi(seeds));
  for (uint64_t seed = begin; seed < begin + static_cast<uint64_t>(count); seed++) {
    environment["EMULATOR_SEED"] = std::to_string(seed);
    under("random", body, environment);
  }
}

// EMULATOR_THREADED_SEEDS gives the number of seeds. From the second one on, tasks begin late, which the seed decides.
inline void under_threads(const std::function<void()> &body, Environment environment = {}) {
  const char *seeds = getenv("EMULATOR_THREADED_SEEDS");
  int count = seeds != nullptr ? atoi(seeds) : 1;
  std::string plan = environment["EMULATOR_FAULTS"];
  for (int seed = 1; seed <= count; seed++) {
    environment["EMULATOR_SEED"] = std::to_string(seed);
    if (seed > 1 && plan.find("delay") == std::string::npos) environment["EMULATOR_FAULTS"] = plan + ";delay=200";
    under("threaded", body, environment);
  }
}

// For what holds under every schedule.
inline void under_all(const std::function<void()> &body, const Environment &environment = {}) {
  for (const char *schedule : {"lazy", "eager"}) under(schedule, body, environment);
  under_threads(body, environment);
  under_random_seeds(5, body, environment);
}

// OK checks that a call succeeds, FAILS that it has another status.
#define OK(call) FAILS(call, success)
#define FAILS(call, expected)                                                                     \
  do {                                                                                            \
    Status status_ = (call);                                                                      \
    if (status_ != Status::expected) {                                                            \
      fprintf(stderr, "%s:%d: %s gives %s instead of " #expected "\n", __FILE__, __LINE__, #call, \
              emulator::name(status_));                                                           \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

// REPORTS checks the number of reports about ordering and memory.
#define REPORTS(expected)                                                                                    \
  do {                                                                                                       \
    if (emulator::report_count() != static_cast<size_t>(expected)) {                                         \
      fprintf(stderr, "%s:%d: %zu reports instead of %zu\n%s", __FILE__, __LINE__, emulator::report_count(), \
              static_cast<size_t>(expected), emulator::report_text().c_str());                               \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

inline StreamHandle new_stream(bool blocking = false, int priority = 0) {
  StreamHandle stream = nullptr;
  OK(emulator::create_stream({blocking, priority}, &stream));
  return stream;
}

inline emulator::EventHandle new_event(bool timing = true) {
  emulator::EventHandle event = nullptr;
  OK(emulator::create_event({timing, false}, &event));
  return event;
}

// Device memory of `count` words.
inline uint32_t *new_words(size_t count) {
  void *address = nullptr;
  OK(emulator::allocate(count * sizeof(uint32_t), &address));
  return static_cast<uint32_t *>(address);
}

inline uint32_t *new_pinned_words(size_t count) {
  void *address = nullptr;
  OK(emulator::allocate_host(count * sizeof(uint32_t), &address));
  return static_cast<uint32_t *>(address);
}

// Reads a word of device memory as it is now.
inline uint32_t word(const uint32_t *address) {
  return __atomic_load_n(static_cast<const uint32_t *>(emulator::host_view(address)), __ATOMIC_SEQ_CST);
}

// A log that tasks append to: the order in which they ran.
class Log {
 public:
  // Queues a task that appends the letter.
  void append(StreamHandle stream, char letter) {
    OK(emulator::launch(stream, std::string("append ") + letter, {}, {}, [this, letter] { add(letter); }));
  }
  void add(char letter) {
    while (locked_.test_and_set()) {
    }
    text_ += letter;
    locked_.clear();
  }
  std::string text() {
    while (locked_.test_and_set()) {
    }
    std::string copy = text_;
    locked_.clear();
    return copy;
  }

 private:
  std::atomic_flag locked_;
  std::string text_;
};

}  // namespace emulator_test
