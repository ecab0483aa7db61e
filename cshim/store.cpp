// store.cpp calls a c10d::Store for the core. See store.hpp for the threads.
#include "store.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "gil.hpp"
#include "store_text.hpp"

namespace sagecomm {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

StoreView::StoreView(c10::intrusive_ptr<c10d::Store> store, Interruption& interruption)
    : store_(std::move(store)),
      interruption_(interruption),
      view_{this, &StoreView::set, &StoreView::get, &StoreView::getMany} {
}

int32_t StoreView::set(void* ctx, const char* key, const void* data, size_t n, char* why, size_t whyN) noexcept {
  auto* self = static_cast<StoreView*>(ctx);
  try {
    const auto* bytes = static_cast<const uint8_t*>(data);
    WithoutGil unlocked;
    self->store_->set(std::string(key), std::vector<uint8_t>(bytes, bytes + n));
    return 0;
  } catch (...) {
    self->keepRaised();
    return explainCurrent(why, whyN);
  }
}

int32_t StoreView::get(
    void* ctx, const char* key, int64_t timeoutNs, void* sinkCtx, Sink sink, char* why, size_t whyN) noexcept {
  auto* self = static_cast<StoreView*>(ctx);
  try {
    WithoutGil unlocked;
    const std::string name(key);
    if (const int32_t status = self->waitFor({name}, timeoutNs, why, whyN); status != SAGECOMM_OK) {
      return status;
    }
    const std::vector<uint8_t> value = self->store_->get(name);
    sink(sinkCtx, value.data(), value.size());
    return 0;
  } catch (...) {
    self->keepRaised();
    return explainCurrent(why, whyN);
  }
}

int32_t StoreView::getMany(
    void* ctx,
    const char* const* keys,
    size_t n,
    int64_t timeoutNs,
    void* sinkCtx,
    Sink sink,
    char* why,
    size_t whyN) noexcept {
  auto* self = static_cast<StoreView*>(ctx);
  try {
    WithoutGil unlocked;
    const std::vector<std::string> names(keys, keys + n);
    if (const int32_t status = self->waitFor(names, timeoutNs, why, whyN); status != SAGECOMM_OK) {
      return status;
    }
    for (const auto& value : self->store_->multiGet(names)) {
      sink(sinkCtx, value.data(), value.size());
    }
    return 0;
  } catch (...) {
    self->keepRaised();
    return explainCurrent(why, whyN);
  }
}

// Keeps KeyboardInterrupt, SystemExit and the like, which a store that is written in Python lets through from signal
// handlers.
void StoreView::keepRaised() noexcept {
  if (endsProgram(std::current_exception())) {
    interruption_.raised = std::current_exception();
  }
}

// Polls instead of waiting in the store, so that signal handlers run in between. Also, a TCPStore keeps its connection
// locked during a wait, which would keep other threads of the core out, and logs a warning at the end of each slice.
int32_t StoreView::waitFor(const std::vector<std::string>& keys, int64_t timeoutNs, char* why, size_t whyN) {
  const auto begin = Clock::now();
  auto pause = std::chrono::microseconds(100);
  for (;;) {
    if (store_->check(keys)) {
      return SAGECOMM_OK;
    }
    try {
      checkSignals();
    } catch (...) {
      interruption_.raised = std::current_exception();
    }
    if (const char* const reason = interruption_.reason()) {
      explain(why, whyN, reason);
      return -1;
    }
    const auto left = nanoseconds(timeoutNs) - (Clock::now() - begin);
    if (left <= nanoseconds(0)) {
      explain(why, whyN, keys.size() == 1 ? "the key did not appear in time" : "not all keys appeared in time");
      return SAGECOMM_TIMEOUT;
    }
    std::this_thread::sleep_for(std::min<nanoseconds>(left, pause));
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

} // namespace sagecomm
