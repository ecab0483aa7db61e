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
#include <vector>

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

struct Errand;
using ErrandPtr = std::shared_ptr<Errand>;

// What has come of an errand.
struct Made {
  StorePtr store; // null: the errand has failed
  ErrandPtr clone; // which the store uses and other groups share; null: none
};

// Errand is a call in a store on a thread of its own. Where the store's server is dead or stopped, the call returns after minutes or never, so
// whoever waits for it may give it up; then the thread drops what has come of it.
struct Errand {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  Made made;
  std::string why;
};

namespace {

// Once the process ends, nothing is given back.
template <typename T>
void giveBack(T& what) {
  const CompletionGate gate;
  if (!gate.open()) {
    new T(std::move(what));
  }
  what = nullptr;
}

void carryOut(ErrandPtr errand, std::function<Made()> call) {
  Made made;
  char why[512] = "";
  try {
    made = call();
  } catch (...) {
    explainCurrent(why, sizeof why);
  }
  giveBack(call); // which may hold the user's store
  {
    std::lock_guard<std::mutex> lock(errand->mutex);
    errand->made = std::move(made);
    errand->why = why;
    errand->done = true;
  }
  errand->ended.notify_all();
  giveBack(errand);
}

ErrandPtr begin(std::function<Made()> call) {
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

// What claim() and release() take: the clone within the prefixes of the given store, or the errand that makes it.
struct Claimer {
  StorePtr store;
  ErrandPtr errand; // null: store is there
};

constexpr std::chrono::seconds kLongest{10}; // for a clone that the caller, or another group, waits for

// Waits until an errand has succeeded. Throws where it has failed or the deadline is over. look, if given, is called every 20 ms, and may throw.
void await(Errand& errand, Clock::time_point deadline, const std::function<void()>& look = nullptr) {
  const auto pause = look ? Clock::duration(std::chrono::milliseconds(20)) : Clock::duration(std::chrono::hours(1));
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(errand.mutex);
      errand.ended.wait_until(lock, std::min(deadline, Clock::now() + pause), [&] { return errand.done; });
      if (errand.done && errand.made.store) {
        return;
      }
      if (errand.done) {
        throw std::runtime_error(errand.why);
      }
    }
    if (look) {
      look();
    }
    if (Clock::now() >= deadline) {
      throw std::runtime_error("the server of the store did not answer in time");
    }
  }
}

// Reads what a PrefixStore has no function for.
struct Prefix : c10d::PrefixStore {
  static const std::string& of(const c10d::PrefixStore& store) {
    return store.*&Prefix::prefix_;
  }
};

// A store of torch's, of which only the way to its server is known: who makes a clone of it later does not keep the user's store alive.
struct Server {
  std::string host;
  c10d::TCPStoreOptions options;
  std::vector<std::string> prefixes; // the outermost one first

  std::string name() const {
    return host + " " + std::to_string(options.port);
  }

  StorePtr connect() const {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  }
};

Server serverOf(const c10d::TCPStore& store, std::vector<std::string> prefixes) {
  Server server{store.getHost(), {}, std::move(prefixes)};
  server.options.port = store.getPort();
  server.options.waitWorkers = false;
  server.options.timeout = store.getTimeout();
  server.options.useLibUV = store.isLibUvBackend();
  return server;
}

// Returns the prefixes of a store, the outermost one first. Torch's cast of an intrusive_ptr leaks the reference where the type is another one.
std::vector<std::string> prefixesOf(StorePtr store) {
  std::vector<std::string> prefixes;
  for (;;) {
    auto* const outer = dynamic_cast<c10d::PrefixStore*>(store.get());
    if (outer == nullptr) {
      return prefixes;
    }
    prefixes.push_back(Prefix::of(*outer));
    store = outer->getUnderlyingStore();
  }
}

// Returns a clone within prefixes.
StorePtr prefixed(const std::vector<std::string>& prefixes, StorePtr clone) {
  for (auto prefix = prefixes.rbegin(); prefix != prefixes.rend(); ++prefix) {
    clone = c10::make_intrusive<c10d::PrefixStore>(*prefix, std::move(clone));
  }
  return clone;
}

// Returns the errand that has made the clone of a server for all groups. A clone may take any time. One that others use may have lost its server,
// and another server may have come in its place. So it is asked first, for kLongest.
ErrandPtr sharedCloneOf(const Server& server) {
  Shared& all = shared();
  constexpr int kMostTries = 3;
  for (int tries = 1;; tries++) {
    ErrandPtr clone;
    bool mine = false;
    {
      std::lock_guard<std::mutex> lock(all.mutex);
      clone = all.clones[server.name()].lock();
      mine = clone == nullptr;
      if (mine) {
        clone = begin([server] { return Made{server.connect(), nullptr}; });
        all.clones[server.name()] = clone;
      }
    }
    try {
      await(*clone, Clock::time_point::max());
      if (mine) {
        return clone;
      }
      const ErrandPtr asked = begin([clone] {
        clone->made.store->check({"sagecomm"});
        return clone->made;
      });
      await(*asked, Clock::now() + kLongest);
      return clone;
    } catch (...) {
      {
        std::lock_guard<std::mutex> lock(all.mutex);
        std::lock_guard<std::mutex> its(clone->mutex);
        if (clone->done && all.clones[server.name()].lock() == clone) {
          all.clones.erase(server.name());
        }
      }
      if (mine || tries == kMostTries) {
        throw;
      }
    }
  }
}

} // namespace

LastingStore::LastingStore(StorePtr store, std::chrono::nanoseconds timeout, Interruption& interruption)
    : store_(std::move(store)),
      deadline_(Clock::now() + std::min<std::chrono::nanoseconds>(timeout, kLongest)),
      interruption_(interruption),
      view_{this, &LastingStore::prepare, &LastingStore::claim, &LastingStore::release} {
}

// A store that is written in Python would need the GIL on a thread of the core, maybe when the interpreter is gone. Which stores are is not
// visible from here, so those are taken that are known not to be. The clone of a TCPStore asks a name server and a server, so nobody waits for
// it. That of a FileStore changes the file, of which others count the users, before the caller goes on.
int32_t LastingStore::prepare(void* ctx, void** claimer, char* why, size_t whyN) noexcept {
  auto* const self = static_cast<LastingStore*>(ctx);
  try {
    WithoutGil unlocked;
    const StorePtr& given = self->store_;
    auto* const outer = dynamic_cast<c10d::PrefixStore*>(given.get());
    const StorePtr store = outer != nullptr ? outer->getUnderlyingNonPrefixStore() : given;
    if (const auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
      const Server server = serverOf(*tcp, prefixesOf(given));
      *claimer = new Claimer{nullptr, begin([server] {
                               const ErrandPtr clone = sharedCloneOf(server);
                               return Made{prefixed(server.prefixes, clone->made.store), clone};
                             })};
    } else if (
        dynamic_cast<c10d::FileStore*>(store.get()) != nullptr ||
        dynamic_cast<c10d::HashStore*>(store.get()) != nullptr) {
      *claimer = new Claimer{prefixed(prefixesOf(given), self->cloneOf(store)), nullptr};
    } else {
      throw std::runtime_error(
          "a " + c10::demangle(typeid(*store).name()) +
          " cannot be used after the group was made, as one that is written in Python needs the interpreter; take a "
          "TCPStore, FileStore or HashStore, in PrefixStores or not");
    }
    return 0;
  } catch (...) {
    return explainCurrent(why, whyN);
  }
}

StorePtr LastingStore::cloneOf(const StorePtr& store) {
  const ErrandPtr clone = begin([store] { return Made{store->clone(), nullptr}; });
  await(*clone, deadline_, [this] {
    try {
      checkSignals();
    } catch (...) {
      interruption_.raised = std::current_exception();
    }
    if (const char* const reason = interruption_.reason()) {
      throw std::runtime_error(reason);
    }
  });
  return std::move(clone->made.store); // so that the thread that has made it does not hold it
}

// It waits for the clone, if that is not there yet. An expected value that is empty is what torch's stores compare a key without a value with.
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
    const auto* const c = static_cast<const Claimer*>(claimer);
    if (c->errand) {
      await(*c->errand, Clock::time_point::max());
    }
    const StorePtr store = c->errand ? c->errand->made.store : c->store;
    const std::vector<uint8_t> value = store->compareSet(key, nothing, mine);
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
