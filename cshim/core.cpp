// core.cpp loads the library once per process and keeps the gate that completions pass. See core.hpp.
#include "core.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include <c10/util/Exception.h>

namespace sagecomm {

namespace {

using Clock = std::chrono::steady_clock;

std::mutex loadMutex;
std::string loadedPath; // guarded by loadMutex
sagecomm_waits longest{}; // stored before table
std::atomic<const sagecomm_api*> table{nullptr};
std::atomic<bool> inForkedChild{false};
std::atomic<bool> leaving{false};
std::atomic<bool> gateClosed{false};
std::atomic<int> insideGate{0};
std::atomic<Clock::rep> insideSince{0}; // when insideGate was 0 for the last time since `leaving`, on Clock

const sagecomm_api* openLibrary(const std::string& path) {
  // Never closed: Go's runtime cannot be unloaded.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    TORCH_CHECK(false, "sagecomm: cannot open the core library: ", why == nullptr ? path.c_str() : why);
  }
  auto* getApi = reinterpret_cast<decltype(&sagecomm_get_api)>(dlsym(library, "sagecomm_get_api"));
  TORCH_CHECK(getApi != nullptr, "sagecomm: ", path, " is not the sagecomm core: it has no sagecomm_get_api");
  const sagecomm_api* api = getApi(SAGECOMM_ABI_VERSION);
  TORCH_CHECK(
      api != nullptr,
      "sagecomm: ",
      path,
      " does not speak version ",
      SAGECOMM_ABI_VERSION,
      " of the C ABI, which this extension needs; install core and extension from one wheel, or rebuild both");
  TORCH_CHECK(
      api->struct_size >= sizeof(sagecomm_api),
      "sagecomm: ",
      path,
      " is older than this extension: its function table has ",
      api->struct_size,
      " bytes, ",
      sizeof(sagecomm_api),
      " are needed; install core and extension from one wheel, or rebuild both");
  TORCH_CHECK(
      api->op_size == sizeof(sagecomm_op),
      "sagecomm: ",
      path,
      " does not fit this extension: an operation has ",
      api->op_size,
      " bytes there and ",
      sizeof(sagecomm_op),
      " here; install core and extension from one wheel, or rebuild both");
  return api;
}

} // namespace

std::string loadCore(const std::string& path) {
  std::lock_guard<std::mutex> lock(loadMutex);
  if (!coreLoaded()) {
    const sagecomm_api* api = openLibrary(path);
    pthread_atfork(nullptr, nullptr, [] { inForkedChild.store(true, std::memory_order_relaxed); });
    loadedPath = path;
    api->waits(&longest);
    table.store(api, std::memory_order_release);
  }
  TORCH_CHECK(
      loadedPath == path,
      "sagecomm: the core is already loaded from ",
      loadedPath,
      "; it cannot be replaced by ",
      path);
  return core().version();
}

const sagecomm_api& core() {
  const sagecomm_api* api = table.load(std::memory_order_acquire);
  TORCH_CHECK(api != nullptr, "sagecomm: the core library is not loaded; call load_core(path) first");
  return *api;
}

const sagecomm_waits& waits() noexcept {
  return longest;
}

bool coreLoaded() noexcept {
  return table.load(std::memory_order_acquire) != nullptr;
}

bool forked() noexcept {
  return inForkedChild.load(std::memory_order_relaxed);
}

void shutdownCore() {
  if (!coreLoaded() || forked() || leaving.exchange(true)) {
    return;
  }
  const auto began = Clock::now();
  core().shutdown(); // operations fail, and Futures that are open get the error, while threads may take the GIL
  gateClosed.store(true);
  // A user's callback may run in the gate. The process ends without it when hooks_ns is over, of which shutdown() may have waited for it
  // already; who has come in last gets one slice at least.
  const auto entered = std::max(began, Clock::time_point(Clock::duration(insideSince.load())));
  const auto deadline = std::max(
      entered + std::chrono::nanoseconds(waits().hooks_ns), Clock::now() + std::chrono::nanoseconds(waits().slice_ns));
  while (insideGate.load() != 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool exiting() noexcept {
  return leaving.load(std::memory_order_relaxed);
}

// Sequentially consistent on both sides: either shutdownCore() sees this thread inside, or this thread sees the gate
// closed.
CompletionGate::CompletionGate() noexcept {
  if (insideGate.fetch_add(1) == 0 && exiting()) {
    insideSince.store(Clock::now().time_since_epoch().count());
  }
  open_ = !gateClosed.load();
}

CompletionGate::~CompletionGate() {
  insideGate.fetch_sub(1);
}

} // namespace sagecomm
