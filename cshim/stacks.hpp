// stacks.hpp records Python stacks for the flight recorder of a group that wants them (SAGECOMM_FR_STACKS).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sagecomm.h"

namespace sagecomm {

// Stacks numbers the Python stacks from which operations of one group were called. It recognizes a stack by its code
// objects and lines, so that each stack becomes a text only once. Any thread may use it.
class Stacks {
 public:
  Stacks(const sagecomm_api& api, sagecomm_group group) : api_(api), group_(group) {
  }
  // Returns null where the group records no stacks.
  static std::unique_ptr<Stacks> of(const sagecomm_api& api, sagecomm_group group) {
    return group != 0 && api.group_stack(group, nullptr) != 0 ? std::make_unique<Stacks>(api, group) : nullptr;
  }
  // Returns the number of this thread's Python stack, 0 if it has none. Called without the GIL, which it takes.
  uint64_t here();

 private:
  struct Frame {
    PyCodeObject* code; // a strong reference, so that no other code object gets the address
    int line;
    bool operator==(const Frame& other) const {
      return code == other.code && line == other.line;
    }
  };
  struct Known {
    std::vector<Frame>
        frames; // their code objects are never released, because this object may be destroyed without the GIL
    uint64_t number;
  };

  const sagecomm_api& api_;
  const sagecomm_group group_;
  std::mutex mutex_; // a thread that holds it does not ask for the GIL
  std::unordered_multimap<size_t, Known> known_;
};

} // namespace sagecomm
