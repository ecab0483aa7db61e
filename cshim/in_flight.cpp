// in_flight.cpp keeps the operations that devices may not have ended. See in_flight.hpp.
#include "in_flight.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "core.hpp"

namespace sagecomm {

namespace {

// How many entries a look sees. Each operation enters one, so a list of operations that the devices have passed shrinks.
constexpr size_t kLooks = 8;
// So often the first entry is asked before it makes room for others: as a rule devices pass operations in the order in which they entered.
constexpr uint32_t kAsks = 2;

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

template <class Pick>
InFlight::Entries InFlight::entriesOf(const Pick& pick) {
  Entries picked;
  All& the = all();
  std::lock_guard<std::mutex> lock(the.mutex);
  std::copy_if(the.entries.begin(), the.entries.end(), std::back_inserter(picked), pick);
  return picked;
}

InFlight::InFlight(sagecomm_group group, const void* scope, const char* op, std::shared_ptr<DeviceWork> work) {
  own_.push_back({group, scope, op, 0, 0, std::move(work)});
}

InFlight::~InFlight() {
  if (!own_.empty() && own_.front().work->hasEnded()) {
    enter(0); // the sequence is for what may wait
  }
}

void InFlight::enter(uint64_t sequence) noexcept {
  own_.front().sequence = sequence;
  sweep(); // not of its own entry, which has just been issued
  if (!own_.front().work->isOver()) {
    All& the = all();
    std::lock_guard<std::mutex> lock(the.mutex);
    the.entries.splice(the.entries.end(), own_);
  }
  own_.clear();
}

// Removes what is over, and asks devices until one has not passed its operation, which is one question as a rule. Operations that go on are not
// asked for and make room for others. The devices are asked without the mutex.
void InFlight::sweep() noexcept {
  All& the = all();
  for (size_t left = kLooks; left > 0;) {
    Entries over;
    std::shared_ptr<DeviceWork> asked;
    {
      std::lock_guard<std::mutex> lock(the.mutex);
      for (; left > 0 && !asked && !the.entries.empty(); left--) {
        const auto first = the.entries.begin();
        if (first->work->isOver()) {
          over.splice(over.end(), the.entries, first);
          continue;
        }
        if (first->work->hasEnded()) {
          asked = first->work;
          if (++first->asks < kAsks) {
            break;
          }
          first->asks = 0;
        }
        the.entries.splice(the.entries.end(), the.entries, first);
      }
    }
    if (!asked || !asked->releaseIfPassed()) {
      return;
    }
  }
}

void InFlight::sweepAll() noexcept {
  Entries over;
  try {
    for (const Entry& entry : entriesOf([](const Entry& /*each*/) { return true; })) {
      entry.work->releaseIfPassed();
    }
  } catch (const std::bad_alloc&) { // later operations look at these
  }
  All& the = all();
  std::lock_guard<std::mutex> lock(the.mutex);
  for (auto entry = the.entries.begin(); entry != the.entries.end();) {
    const auto each = entry++;
    if (each->work->isOver()) {
      over.splice(over.end(), the.entries, each);
    }
  }
}

void InFlight::awaitOutputs(const Footprint& read, const void* scope) {
  if (forked()) { // a thread of the parent may have had the mutex
    return;
  }
  for (const Entry& entry : entriesOf([&](const Entry& e) { return e.scope == scope && e.work->writes(read); })) {
    DeviceWork& work = *entry.work;
    if (!work.isInCapture() && !work.passed() && !work.refusesCapture()) {
      static_cast<void>(work.blockCurrentStream());
    }
  }
}

bool InFlight::failIfBroken(sagecomm_group group) noexcept {
  if (forked()) { // a thread of the parent may have had the mutex
    return false;
  }
  try {
    const Entries under = entriesOf([group](const Entry& e) { return e.group == group && !e.work->hasEnded(); });
    return std::any_of(under.begin(), under.end(), [](const Entry& entry) {
      return entry.work->failIfBroken(entry.group, entry.op, entry.sequence);
    });
  } catch (const std::bad_alloc&) { // the next look may have the memory
    return false;
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
