#include "group.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <thread>

namespace fake_nccl {

ncclResult_t fail(ncclResult_t result, const std::string & /*why*/) { return result; }

int current_device() {
  int device = -1;
  return emulator::current_device(&device) == emulator::Status::success ? device : -1;
}

bool identify(int device, char *text, size_t size) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  return device >= 0 && snprintf(text, size, "%s/%d", host, device) < static_cast<int>(size);
}

}  // namespace fake_nccl

namespace blocking {
namespace {

std::mutex mutex;
std::map<fake_nccl::State *, std::set<emulator::StreamHandle>> streams;

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

}  // namespace

ncclResult_t join(const fake_nccl::Address &address, int ranks, int rank, StatePointer *made) {
  StatePointer state;
  ncclResult_t result = fake_nccl::join(address, ranks, rank, true, &state);
  if (result != ncclSuccess) return result;
  for (result = ncclInProgress; result == ncclInProgress; pause()) {
    std::lock_guard lock(state->mutex);
    result = look(*state);
  }
  if (result != ncclSuccess) return result;
  if (const auto late = emulator::take_late()) await_late(*late);
  *made = state;
  return result;
}

ncclResult_t issue(const StatePointer &state, const std::vector<Operation> &operations,
                   const std::optional<emulator::Late> &late) {
  if (fake_nccl::current_device() != state->device) return ncclUnhandledCudaError;
  connect(*state, operations);
  while (!connected(*state, {operations.begin(), operations.end()})) {
    if (state->aborted && !late) return ncclRemoteError;
    pause();
  }
  if (late) await_late(*late);
  {
    std::lock_guard lock(mutex);
    for (const Operation &one : operations) streams[state.get()].insert(one.stream);
  }
  std::lock_guard lock(state->mutex);
  return launch(state, operations);
}

ncclResult_t finish(const StatePointer &state) {
  std::set<emulator::StreamHandle> used;
  {
    std::lock_guard lock(mutex);
    used.swap(streams[state.get()]);
    streams.erase(state.get());
  }
  for (emulator::StreamHandle one : used)
    if (emulator::stream_synchronize(one) != emulator::Status::success) return ncclUnhandledCudaError;
  return ncclSuccess;
}

}  // namespace blocking
