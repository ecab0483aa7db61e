#include "flight.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#if __has_include(<torch/csrc/distributed/c10d/FlightRecorder.hpp>)
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#endif

#include "core.hpp"
#include "errors.hpp"

namespace c10d {
class DebugInfoWriter; // stays incomplete where torch's header does not define it
} // namespace c10d

namespace sagecomm {

namespace {

template <class Writer, class = void>
struct Destination {
  static void write(int /*rank*/, const std::string& /*dump*/) {
    TORCH_CHECK(false, "sagecomm: this torch has no place for dumps of the flight recorder");
  }
};

template <class Writer>
struct Destination<Writer, std::void_t<decltype(Writer::getWriter(0).write(std::string()))>> {
  static void write(int rank, const std::string& dump) {
    Writer::getWriter(rank).write(dump);
  }
};

template <class Tell>
std::string toldBy(Tell tell, const char* what) {
  std::string text(1 << 16, '\0');
  for (;;) {
    const int64_t needed = tell(text.data(), text.size());
    TORCH_CHECK(needed > 0, "sagecomm: ", what, " cannot be read: status ", needed);
    if (static_cast<size_t>(needed) <= text.size()) {
      text.resize(static_cast<size_t>(needed) - 1); // without the closing NUL
      return text;
    }
    text.resize(static_cast<size_t>(needed) * 2); // operations go on meanwhile
  }
}

} // namespace

std::string told(int64_t (*tell)(char*, size_t), const char* what) {
  return toldBy(tell, what);
}

std::string flightRecords() {
  return told(core().flight_records, "the flight recorder");
}

std::string metrics() {
  return told(core().metrics, "the metrics");
}

std::string topology() {
  return told(core().topology, "the topology");
}

std::string simulate(const std::string& question) {
  return toldBy(
      [&](char* text, size_t bytes) { return core().simulate(question.c_str(), text, bytes); }, "the simulation");
}

std::string explain(const std::string& question) {
  return toldBy(
      [&](char* text, size_t bytes) { return core().explain(question.c_str(), text, bytes); }, "the explanation");
}

std::string tune(const std::string& measurements) {
  return toldBy(
      [&](char* text, size_t bytes) { return core().tune(measurements.c_str(), text, bytes); }, "the tuning file");
}

void dumpFlight(const std::optional<std::string>& prefix) {
  sagecomm_error error;
  if (core().flight_dump(prefix ? prefix->c_str() : nullptr, &error) < 0) {
    raise(error);
  }
}

void writeDump(int rank, const std::string& dump) {
  Destination<c10d::DebugInfoWriter>::write(rank, dump);
}

} // namespace sagecomm
