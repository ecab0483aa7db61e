#include "flight.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#if __has_include(<torch/csrc/distributed/c10d/FlightRecorder.hpp>)
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#endif

#include "core.hpp"

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

} // namespace

std::string flightRecords() {
  const sagecomm_api& api = core();
  TORCH_CHECK(api.flight_records != nullptr, "sagecomm: the core has no flight recorder");
  std::string json(1 << 16, '\0');
  for (;;) {
    const int64_t needed = api.flight_records(json.data(), json.size());
    TORCH_CHECK(needed > 0, "sagecomm: the flight recorder cannot be read: status ", needed);
    if (static_cast<size_t>(needed) <= json.size()) {
      json.resize(static_cast<size_t>(needed) - 1); // without the closing NUL
      return json;
    }
    json.resize(static_cast<size_t>(needed) * 2); // operations go on meanwhile
  }
}

void writeDump(int rank, const std::string& dump) {
  Destination<c10d::DebugInfoWriter>::write(rank, dump);
}

} // namespace sagecomm
