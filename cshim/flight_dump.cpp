// flight_dump.cpp asks the core for a dump, or passes one on to torch's DebugInfoWriter where this torch has that class.
#include "flight_dump.hpp"

#include <type_traits>

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
    TORCH_CHECK(
        false, "sagecomm: this torch has no DebugInfoWriter; write a file with sagecomm.dump_flight_recorder(prefix)");
  }
};

template <class Writer>
struct Destination<Writer, std::void_t<decltype(Writer::getWriter(0).write(std::string()))>> {
  static void write(int rank, const std::string& dump) {
    Writer::getWriter(rank).write(dump);
  }
};

} // namespace

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
