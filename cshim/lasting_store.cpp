// lasting_store.cpp clones a c10d::Store for the core and claims keys in the clone. See lasting_store.hpp.
#include "lasting_store.hpp"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core.hpp"
#include "gil.hpp"
#include "store_text.hpp"

namespace sagecomm {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Clock = std::chrono::steady_clock;

// Errand is a call in a store on a thread of its own. Where the store's server is dead or stopped, the call returns after minutes or never, so
// whoever waits for it may give it up; then the thread drops what has come of it.
struct Errand {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  StorePtr store; // what the call has returned; null: it failed
  std::string why;
};

namespace {

using ErrandPtr = std::shared_ptr<Errand>;

// Once the process ends, nothing is given back.
template <typename T>
void giveBack(T& what) {
  const CompletionGate gate;
  if (!gate.open()) {
    new T(std::move(what));
  }
  what = nullptr;
}

void carryOut(ErrandPtr errand, std::function<StorePtr()> call) {
  StorePtr store;
  char why[512] = "";
  try {
    store = call();
  } catch (...) {
    explainCurrent(why, sizeof why);
  }
  giveBack(call); // which may hold the user's store
  {
    std::lock_guard<std::mutex> lock(errand->mutex);
    errand->store = std::move(store);
    errand->why = why;
    errand->done = true;
  }
  errand->ended.notify_all();
  giveBack(errand);
}

ErrandPtr begin(std::function<StorePtr()> call) {
  auto errand = std::make_shared<Errand>();
  std::thread(carryOut, errand, std::move(call)).detach();
  return errand;
}

// The clones of TCPStores of this process, by their servers. Claims and errands hold them.
struct Shared {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Errand>> clones;
};

// It stays when the process ends, like threads that may use it.
Shared& shared() {
  static auto* const all = new Shared;
  return *all;
}

// What claim() and release() take.
struct Claimer {
  ErrandPtr shared; // null: nobody else has the clone
  StorePtr store; // the clone within the prefixes of the given store
};

constexpr std::chrono::seconds kLongest{10}; // all ranks of a group wait for the slowest clone

// Reads what a PrefixStore has no function for.
struct Prefix : c10d::PrefixStore {
  static const std::string& of(const c10d::PrefixStore& store) {
    return store.*&Prefix::prefix_;
  }
};

// Returns a clone within the prefixes of a store. Torch's cast of an intrusive_ptr leaks the reference where the type is another one.
StorePtr prefixed(const StorePtr& as, const StorePtr& clone) {
  auto* const outer = dynamic_cast<c10d::PrefixStore*>(as.get());
  if (outer == nullptr) {
    return clone;
  }
  return c10::make_intrusive<c10d::PrefixStore>(Prefix::of(*outer), prefixed(outer->getUnderlyingStore(), clone));
}

} // namespace

LastingStore::LastingStore(StorePtr store, std::chrono::nanoseconds timeout, Interruption& interruption)
    : store_(std::move(store)),
      deadline_(Clock::now() + std::min<std::chrono::nanoseconds>(timeout, kLongest)),
      interruption_(interruption),
      view_{this, &LastingStore::prepare, &LastingStore::claim, &LastingStore::release} {
}

// A store that is written in Python would need the GIL on a thread of the core, maybe when the interpreter is gone. Which stores are is not
// visible from here, so those are taken that are known not to be.
int32_t LastingStore::prepare(void* ctx, void** claimer, char* why, size_t whyN) noexcept {
  auto* const self = static_cast<LastingStore*>(ctx);
  try {
    WithoutGil unlocked;
    const StorePtr& given = self->store_;
    auto* const outer = dynamic_cast<c10d::PrefixStore*>(given.get());
    const StorePtr store = outer != nullptr ? outer->getUnderlyingNonPrefixStore() : given;
    ErrandPtr shared;
    StorePtr clone;
    if (const auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
      shared = self->sharedCloneOf(store, tcp->getHost() + " " + std::to_string(tcp->getPort()));
      clone = shared->store;
    } else if (
        dynamic_cast<c10d::FileStore*>(store.get()) != nullptr ||
        dynamic_cast<c10d::HashStore*>(store.get()) != nullptr) {
      clone = self->cloneOf(store);
    } else {
      throw std::runtime_error(
          "a " + c10::demangle(typeid(*store).name()) +
          " cannot be used after the group was made, as one that is written in Python needs the interpreter; take a "
          "TCPStore, FileStore or HashStore, in PrefixStores or not");
    }
    *claimer = new Claimer{std::move(shared), prefixed(given, clone)};
    return 0;
  } catch (...) {
    return explainCurrent(why, whyN);
  }
}

StorePtr LastingStore::cloneOf(const StorePtr& store) {
  const ErrandPtr clone = begin([store] { return store->clone(); });
  await(*clone);
  return std::move(clone->store); // so that the thread that has made it does not hold it
}

// A clone that other groups use may have lost its server, and another server may have come in its place. So it is asked first.
std::shared_ptr<Errand> LastingStore::sharedCloneOf(const StorePtr& store, const std::string& server) {
  Shared& all = shared();
  for (;;) {
    ErrandPtr clone;
    bool mine = false;
    {
      std::lock_guard<std::mutex> lock(all.mutex);
      clone = all.clones[server].lock();
      mine = clone == nullptr;
      if (mine) {
        clone = begin([store] { return store->clone(); });
        all.clones[server] = clone;
      }
    }
    try {
      await(*clone);
      if (mine) {
        return clone;
      }
      await(*begin([known = clone->store] {
        known->check({"sagecomm"});
        return known;
      }));
      return clone;
    } catch (...) {
      {
        std::lock_guard<std::mutex> lock(all.mutex);
        std::lock_guard<std::mutex> its(clone->mutex);
        if (clone->done && all.clones[server].lock() == clone) {
          all.clones.erase(server);
        }
      }
      if (mine || Clock::now() >= deadline_ || interruption_.reason() != nullptr) {
        throw;
      }
    }
  }
}

// Waits until an errand has succeeded. Throws where it has failed, and where it is given up.
void LastingStore::await(Errand& errand) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(errand.mutex);
      errand.ended.wait_until(lock, std::min(deadline_, Clock::now() + kPause), [&] { return errand.done; });
      if (errand.done && errand.store) {
        return;
      }
      if (errand.done) {
        throw std::runtime_error(errand.why);
      }
    }
    try {
      checkSignals();
    } catch (...) {
      interruption_.raised = std::current_exception();
    }
    if (const char* const reason = interruption_.reason()) {
      throw std::runtime_error(reason);
    }
    if (Clock::now() >= deadline_) {
      throw std::runtime_error("the server of the store did not answer in time");
    }
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
    const std::vector<uint8_t> value = static_cast<Claimer*>(claimer)->store->compareSet(key, nothing, mine);
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
    delete static_cast<Claimer*>(claimer);
  }
}

} // namespace sagecomm
