// store.cpp calls a c10d::Store for the core. See store.hpp for the threads.
#include "store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core.hpp"
#include "gil.hpp"

namespace sagecomm {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

namespace {

void explain(char* why, size_t n, const char* what) {
  if (why != nullptr && n > 0) {
    std::snprintf(why, n, "%s", what);
  }
}

// Copies the text of the exception that is being handled; of torch's exceptions without their C++ stack.
int32_t explainCurrent(char* why, size_t n) noexcept {
  try {
    throw;
  } catch (const c10::Error& e) {
    explain(why, n, e.what_without_backtrace());
  } catch (const std::exception& e) {
    explain(why, n, e.what());
  } catch (...) {
    explain(why, n, "the store raised something that is not an exception");
  }
  return -1;
}

} // namespace

StoreView::StoreView(c10::intrusive_ptr<c10d::Store> store, const std::atomic<bool>* interrupted)
    : store_(std::move(store)),
      interrupted_(interrupted),
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
    raised_ = std::current_exception();
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
      raised_ = std::current_exception();
      explain(why, whyN, "interrupted by a signal");
      return -1;
    }
    if (interrupted_ != nullptr && interrupted_->load()) {
      explain(why, whyN, "abort() or shutdown() was called");
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

// ---- as long as the group lives ----

using StorePtr = c10::intrusive_ptr<c10d::Store>;

LastingStore::LastingStore(StorePtr store)
    : store_(std::move(store)), view_{this, &LastingStore::prepare, &LastingStore::claim, &LastingStore::release} {
}

// A store that is written in Python would need the GIL on a thread of the core, maybe when the interpreter is gone. Which stores are is not
// visible from here, so those are taken that are known not to be.
int32_t LastingStore::prepare(void* ctx, void** claimer, char* why, size_t whyN) noexcept {
  try {
    WithoutGil unlocked;
    const StorePtr& given = static_cast<LastingStore*>(ctx)->store_;
    // Torch's cast of an intrusive_ptr leaks the reference where the type is another one.
    auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(given.get());
    const StorePtr store = prefixed != nullptr ? prefixed->getUnderlyingNonPrefixStore() : given;
    if (dynamic_cast<c10d::TCPStore*>(store.get()) == nullptr &&
        dynamic_cast<c10d::FileStore*>(store.get()) == nullptr &&
        dynamic_cast<c10d::HashStore*>(store.get()) == nullptr) {
      const std::string text =
          "a " + c10::demangle(typeid(*store).name()) +
          " cannot be used after the group was made, as one that is written in Python needs the interpreter; take a "
          "TCPStore, FileStore or HashStore, in PrefixStores or not";
      explain(why, whyN, text.c_str());
      return -1;
    }
    *claimer = std::make_unique<StorePtr>(given->clone()).release();
    return 0;
  } catch (...) {
    return explainCurrent(why, whyN);
  }
}

// An expected value that is empty is what torch's stores compare a key without a value with.
int32_t LastingStore::claim(
    void* claimer,
    const char* key,
    const void* data,
    size_t n,
    void* sinkCtx,
    Sink sink,
    char* why,
    size_t whyN) noexcept {
  try {
    const auto* bytes = static_cast<const uint8_t*>(data);
    const std::vector<uint8_t> nothing, mine(bytes, bytes + n);
    const std::vector<uint8_t> value = (*static_cast<StorePtr*>(claimer))->compareSet(key, nothing, mine);
    sink(sinkCtx, value.data(), value.size());
    return 0;
  } catch (...) {
    return explainCurrent(why, whyN);
  }
}

// Once the process ends, nothing is given back.
void LastingStore::release(void* claimer) noexcept {
  const CompletionGate gate;
  if (gate.open()) {
    delete static_cast<StorePtr*>(claimer);
  }
}

} // namespace sagecomm
