// User objects: counted references to something of the program's, which graphs hold. As in a real driver the executables of a graph hold
// what the graph does, and so do launches that are under way; the destructor is called on a thread of the driver, a little after the last
// reference has gone, and may call no function of the driver.
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "driver.hpp"

using driver::result;

namespace {

struct Object {
  CUhostFn destroy;
  void *argument;
  unsigned references;
};

// Never destroyed: the thread uses it until the process ends.
struct Objects {
  std::mutex mutex;
  std::condition_variable work;
  std::map<CUuserObject, Object> known;
  std::deque<Object> unreferenced;
  uintptr_t made = 0;
  bool has_thread = false;
};

Objects &objects() {
  static auto *all = new Objects;
  return *all;
}

void destroy_all() {
  emulator::forbid_calls();
  Objects &all = objects();
  std::unique_lock lock(all.mutex);
  for (;;) {
    all.work.wait(lock, [&] { return !all.unreferenced.empty(); });
    Object object = all.unreferenced.front();
    all.unreferenced.pop_front();
    lock.unlock();
    object.destroy(object.argument);
    --emulator::objects;
    lock.lock();
  }
}

CUresult retain(CUuserObject handle, unsigned count) {
  Objects &all = objects();
  std::lock_guard lock(all.mutex);
  auto found = all.known.find(handle);
  REQUIRE(found != all.known.end() && count > 0, CUDA_ERROR_INVALID_VALUE);
  found->second.references += count;
  return CUDA_SUCCESS;
}

CUresult release(CUuserObject handle, unsigned count) {
  Objects &all = objects();
  std::lock_guard lock(all.mutex);
  auto found = all.known.find(handle);
  REQUIRE(found != all.known.end() && count > 0 && count <= found->second.references, CUDA_ERROR_INVALID_VALUE);
  found->second.references -= count;
  if (found->second.references > 0) return CUDA_SUCCESS;
  all.unreferenced.push_back(found->second);
  all.known.erase(found);
  if (!all.has_thread) std::thread(destroy_all).detach();
  all.has_thread = true;
  all.work.notify_one();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuUserObjectCreate(CUuserObject *made, void *argument, CUhostFn destroy, unsigned references, unsigned flags) {
  BEGIN(made, argument, destroy, references, flags);
  REQUIRE(made != nullptr && destroy != nullptr && references > 0 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
          CUDA_ERROR_INVALID_VALUE);
  Objects &all = objects();
  std::lock_guard lock(all.mutex);
  *made = reinterpret_cast<CUuserObject>(++all.made);
  all.known[*made] = {destroy, argument, references};
  ++emulator::objects;
  return driver::given(CUDA_SUCCESS, *made);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  BEGIN(object, count);
  return retain(object, count);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  BEGIN(object, count);
  return release(object, count);
}

// A graph that has executables is refused: they would not hold the object in a real driver, and do here.
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  BEGIN(graph, object, count, flags);
  REQUIRE(flags == 0 || flags == CU_GRAPH_USER_OBJECT_MOVE, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!driver::has_executables(graph), CUDA_ERROR_NOT_SUPPORTED);
  CUresult held = retain(object, count);
  REQUIRE(held == CUDA_SUCCESS, held);
  const std::shared_ptr<void> kept(object,
                                   [count](void *of_graph) { release(static_cast<CUuserObject>(of_graph), count); });
  held = result(emulator::graph_keeps(reinterpret_cast<emulator::GraphHandle>(graph), kept));
  REQUIRE(held == CUDA_SUCCESS, held);
  return flags == CU_GRAPH_USER_OBJECT_MOVE ? release(object, count) : CUDA_SUCCESS;
}

}  // extern "C"
