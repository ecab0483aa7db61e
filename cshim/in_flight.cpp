// in_flight.cpp keeps the operations that devices may not have ended. See in_flight.hpp.
#include "in_flight.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core.hpp"

namespace sagecomm {

namespace {

// Each operation enters one, so a list of operations that the devices have passed shrinks.
constexpr size_t kLooks = 4;

} // namespace

// Who holds the mutex calls no device and gives no memory back: either may wait for streams that wait for this process.
struct InFlight::All {
  std::mutex mutex;
  Entries entries;
};

// It is never destroyed, because devices may be gone by then.
InFlight::All& InFlight::all() {
  static All* const the = new All;
  return *the;
}

InFlight::InFlight(sagecomm_group group, const void* scope, const char* op, std::shared_ptr<DeviceWork> work) {
  own_.push_back({group, scope, op, 0, std::move(work)});
}

void InFlight::enter(uint64_t sequence) noexcept {
  own_.front().sequence = sequence;
  if (!own_.front().work->isOver()) {
    All& the = all();
    std::lock_guard<std::mutex> lock(the.mutex);
    the.entries.splice(the.entries.end(), own_);
  }
  sweep(kLooks);
}

void InFlight::sweepAll() noexcept {
  sweep(SIZE_MAX);
}

// Looks at the entries in turn. Of those that are not over it asks the device, without the mutex, so a later look removes them.
void InFlight::sweep(size_t most) noexcept {
  Entries over;
  std::vector<std::shared_ptr<DeviceWork>> asked;
  try {
    All& the = all();
    std::lock_guard<std::mutex> lock(the.mutex);
    for (size_t left = std::min(most, the.entries.size()); left > 0; left--) {
      const auto first = the.entries.begin();
      if (first->work->isOver()) {
        over.splice(over.end(), the.entries, first);
      } else {
        asked.push_back(first->work);
        the.entries.splice(the.entries.end(), the.entries, first);
      }
    }
  } catch (const std::bad_alloc&) { // the next look goes on
  }
  for (const std::shared_ptr<DeviceWork>& work : asked) {
    work->releaseIfPassed();
  }
}

void InFlight::awaitOutputs(const Footprint& read, const void* scope) {
  if (forked()) { // a thread of the parent may have had the mutex
    return;
  }
  std::vector<std::shared_ptr<DeviceWork>> writers;
  {
    All& the = all();
    std::lock_guard<std::mutex> lock(the.mutex);
    for (const Entry& entry : the.entries) {
      if (entry.scope == scope && entry.work->writes(read)) {
        writers.push_back(entry.work);
      }
    }
  }
  for (const std::shared_ptr<DeviceWork>& work : writers) {
    if (!work->isInCapture() && !work->passed() && !work->refusesCapture()) {
      work->awaitInCurrentStream();
    }
  }
}

void InFlight::failIfBroken(sagecomm_group group) noexcept {
  Entries under;
  try {
    All& the = all();
    std::lock_guard<std::mutex> lock(the.mutex);
    std::copy_if(the.entries.begin(), the.entries.end(), std::back_inserter(under), [group](const Entry& entry) {
      return entry.group == group && !entry.work->hasEnded();
    });
  } catch (const std::bad_alloc&) { // the next look may have the memory
  }
  for (const Entry& entry : under) {
    if (entry.work->failIfBroken(entry.group, entry.op, entry.sequence)) {
      return;
    }
  }
}

void InFlight::abandon(c10::Device device) noexcept {
  All& the = all();
  std::lock_guard<std::mutex> lock(the.mutex);
  for (const Entry& entry : the.entries) {
    if (entry.work->device() == device) {
      entry.work->abandon();
    }
  }
}

} // namespace sagecomm
