// options.hpp holds the options that a user may give to a group at creation. They are written before the group is made.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sagecomm {

// Settings maps the name of a SAGECOMM_* variable, in lower case and without the prefix, to its value. The core knows the
// names.
using Settings = std::map<std::string, std::string>;

struct GroupOptions : c10d::Backend::Options {
  using Base = c10d::Backend::Options;

  explicit GroupOptions(const Settings& given, std::chrono::milliseconds timeoutMs = kBackendDefaultTimeout)
      : Base("sagecomm", timeoutMs), settings(given.begin(), given.end()) {
  }

  // Newer torch copies the options of a parent group. Without this override the copy would lose `settings`.
  virtual c10::intrusive_ptr<Base> clone() const {
    return copy();
  }
  c10::intrusive_ptr<GroupOptions> copy() const {
    return c10::make_intrusive<GroupOptions>(*this);
  }

  void set(const std::string& name, const std::string& value) {
    for (auto& [known, old] : settings) {
      if (known == name) {
        old = value;
        return;
      }
    }
    settings.emplace_back(name, value);
  }

  std::vector<std::pair<std::string, std::string>> settings;

  // The types of devices whose tensors the group takes.
  std::vector<std::string> devices{"cpu"};

  // The timeout of a sagecomm.Options, if it has one. It wins over the one that torch puts into `timeout`. Without both, a
  // group that is made out of another one has the timeout of that group.
  std::optional<std::chrono::milliseconds> ownTimeout;
};

} // namespace sagecomm
