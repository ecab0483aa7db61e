// profiler_names.cpp asks Python once per group under which backend name torch knows it, and keeps each composed name for
// the life of the process.
#include "profiler_names.hpp"

#include <mutex>
#include <string_view>
#include <unordered_set>

#include <pybind11/pybind11.h>

namespace sagecomm {

namespace {

constexpr std::string_view kOwn = "sagecomm";

// There are at most as many kept texts as backend names times operation names.
const char* keep(const std::string& text) {
  static std::mutex mutex;
  static auto& kept = *new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return kept.insert(text).first->c_str();
}

const char* backendName(const std::string& group) {
  pybind11::gil_scoped_acquire gil;
  try {
    return keep(pybind11::module_::import("sagecomm._names").attr("backend_name")(group).cast<std::string>());
  } catch (pybind11::error_already_set& e) {
    e.discard_as_unraisable("sagecomm");
    return kOwn.data();
  }
}

} // namespace

const char* ProfilerNames::nameFor(const char* own) {
  const char* backend = backend_.load(std::memory_order_acquire);
  if (backend == nullptr) {
    backend = backendName(group_);
    backend_.store(backend, std::memory_order_release);
  }
  return backend == kOwn ? own : keep(backend + std::string(own).substr(kOwn.size()));
}

} // namespace sagecomm
