// reports.cpp calls the functions of the core that fill a buffer with text, and calls again where the buffer was too small.
#include "reports.hpp"

#include <cstddef>
#include <cstdint>

#include <c10/util/Exception.h>

#include "core.hpp"

namespace sagecomm {

namespace {

// Returns what `write` writes. `what` names it in the error.
template <class Write>
std::string textOf(Write write, const char* what) {
  std::string text(1 << 16, '\0');
  for (;;) {
    const int64_t needed = write(text.data(), text.size());
    TORCH_CHECK(
        needed != SAGECOMM_FORKED,
        "sagecomm: ",
        what,
        " cannot be read in a forked process, because the threads of sagecomm are in its parent only. Read it in the "
        "parent, or start workers with spawn or forkserver");
    TORCH_CHECK(needed > 0, "sagecomm: ", what, " cannot be read: the core returned status ", needed);
    if (static_cast<size_t>(needed) <= text.size()) {
      text.resize(static_cast<size_t>(needed) - 1); // without the closing NUL
      return text;
    }
    text.resize(static_cast<size_t>(needed) * 2); // operations go on meanwhile, so the text may grow
  }
}

template <class Ask>
std::string answerOf(Ask ask, const std::string& question, const char* what) {
  return textOf([&](char* text, size_t bytes) { return ask(question.c_str(), text, bytes); }, what);
}

} // namespace

std::string describeEnvironment() {
  return textOf(core().describe_environment, "the description of the environment");
}

std::string describeDevices() {
  return textOf(core().describe_devices, "the description of the devices");
}

std::string flightRecords() {
  return textOf(core().flight_records, "the flight recorder");
}

std::string metrics() {
  return textOf(core().metrics, "the metrics");
}

std::string topology() {
  return textOf(core().topology, "the topology");
}

std::string simulate(const std::string& question) {
  return answerOf(core().simulate, question, "the simulation");
}

std::string explain(const std::string& question) {
  return answerOf(core().explain, question, "the explanation");
}

std::string tune(const std::string& measurements) {
  return answerOf(core().tune, measurements, "the tuning file");
}

} // namespace sagecomm
