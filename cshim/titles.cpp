#include "titles.hpp"

#include <mutex>
#include <string_view>
#include <unordered_set>

#include <pybind11/pybind11.h>

namespace sagecomm {

namespace {

constexpr std::string_view kOwn = "sagecomm";

// As many as there are names of backends times names of operations.
const char* keep(const std::string& text) {
  static std::mutex mutex;
  static auto& kept = *new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return kept.insert(text).first->c_str();
}

const char* nameOf(const std::string& group) {
  pybind11::gil_scoped_acquire gil;
  try {
    return keep(pybind11::module_::import("sagecomm._names").attr("backend_name")(group).cast<std::string>());
  } catch (pybind11::error_already_set& e) {
    e.discard_as_unraisable("sagecomm");
    return kOwn.data();
  }
}

} // namespace

const char* Titles::of(const char* title) {
  const char* name = name_.load(std::memory_order_acquire);
  if (name == nullptr) {
    name = nameOf(group_);
    name_.store(name, std::memory_order_release);
  }
  return name == kOwn ? title : keep(name + std::string(title).substr(kOwn.size()));
}

} // namespace sagecomm
