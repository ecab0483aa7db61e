// in_flight.hpp knows the operations on devices, of all groups of the process, that a device may not have ended and for which no stream of
// their caller waits. They keep the memory of their tensors, and of copies that stand for tensors. Any thread may call these functions,
// without the GIL.
//
// An operation leaves when its caller's stream waits for it, or when a look at its events finds that the device has passed it. No thread
// exists for that: each operation on a device looks at a few others, and so does the end of a group at all. What a device cannot be asked for
// stays until it can.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "device_work.hpp"
#include "sagecomm.h"

namespace sagecomm {

// InFlight is the place of one operation, made before it is issued, when memory may still run out.
class InFlight {
 public:
  // `scope` tells the groups of the process apart, as Buffers::scope() does.
  InFlight(sagecomm_group group, const void* scope, const char* op, std::shared_ptr<DeviceWork> work);

  // Enters an operation that has ended and was not entered, unless nothing is left of it: what ends its call may have been raised while a
  // device still uses the memory.
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Enters the operation, unless nothing is left of it, and looks at a few others. Requires: issued() of the work was called. Called once.
  void enter(uint64_t sequence) noexcept;

  // Makes the current stream of the device wait for collectives of a group that write the memory and have their ends queued. For copies of
  // inputs that a collective of the same group makes in that stream: all ranks issue these in one order, so none waits for a later one. Does
  // nothing while the stream is being captured, and in a forked child.
  static void awaitOutputs(const Footprint& read, const void* scope);

  // Fails the group if the device of an operation that it has under way is out of order, for which the operation would wait for ever. Reports
  // whether that is so.
  static bool failIfBroken(sagecomm_group group) noexcept;

  // Keeps the memory of all operations of a device for good.
  static void abandon(c10::Device device) noexcept;

  // Releases what the devices have passed.
  static void sweepAll() noexcept;

 private:
  struct Entry {
    sagecomm_group group;
    const void* scope;
    const char* op; // a constant
    uint64_t sequence;
    uint32_t asks; // how often the device was asked since the entry has its place
    std::shared_ptr<DeviceWork> work;
  };
  using Entries = std::list<Entry>;
  struct All;

  static All& all();
  static void sweep() noexcept;
  template <class Pick>
  static Entries entriesOf(const Pick& pick);

  Entries own_; // one, until enter()
};

} // namespace sagecomm
