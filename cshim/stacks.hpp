// stacks.hpp: who called, for the flight recorder of a group that records it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sagecomm.h"

namespace sagecomm {

// The numbers of the stacks that the operations of one group were called with. A stack is known by its code objects and
// lines, so that a text is made of it once only.
class Stacks {
 public:
  Stacks(const sagecomm_api& api, sagecomm_group group) : api_(api), group_(group) {
  }
  // Null where the group does not record who calls.
  static std::unique_ptr<Stacks> of(const sagecomm_api& api, sagecomm_group group) {
    return group != 0 && api.group_stack(group, nullptr) != 0 ? std::make_unique<Stacks>(api, group) : nullptr;
  }
  // The number of this thread's Python stack, 0 if it has none. Takes the GIL; called without it.
  uint64_t here();

 private:
  struct Frame {
    PyCodeObject* code; // kept alive, so that it is never another one's address
    int line;
    bool operator==(const Frame& other) const {
      return code == other.code && line == other.line;
    }
  };
  struct Known {
    std::vector<Frame> frames; // whose code objects stay for ever: this object may end without the GIL
    uint64_t number;
  };

  const sagecomm_api& api_;
  const sagecomm_group group_;
  std::mutex mutex_; // who holds it does not ask for the GIL
  std::unordered_multimap<size_t, Known> known_;
};

} // namespace sagecomm
