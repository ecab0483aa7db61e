// options.hpp: what a user may give to a group at creation.
#pragma once

#include <map>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sagecomm {

// A SAGECOMM_* variable's name, in lower case and without the prefix, to its value. The core knows the names.
using Settings = std::map<std::string, std::string>;

struct GroupOptions : c10d::Backend::Options {
  explicit GroupOptions(Settings given, std::chrono::milliseconds timeoutMs = kBackendDefaultTimeout)
      : c10d::Backend::Options("sagecomm", timeoutMs), settings(std::move(given)) {
  }

  // Newer torch copies the options of a parent group; without this the copy would lose `settings`.
  virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const {
    return c10::make_intrusive<GroupOptions>(*this);
  }

  Settings settings;
};

} // namespace sagecomm
