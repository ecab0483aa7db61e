// ipc.hpp shares device memory and events with other processes of the machine. A handle names a file descriptor of the
// exporter, which the importer opens through /proc. The exporter must be alive then; what was imported outlives it.
//
// Ordering between processes is not known to the checker.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.hpp"

namespace emulator {

struct Block;
struct State;

// An event in memory that processes share. Records are numbered by all processes together, from 1.
struct SharedEvent {
  static constexpr size_t window = 64;
  std::atomic<uint64_t> identity;  // 0: free
  std::atomic<uint64_t> issued;
  // [n % window] is at least n when record n is done. Record n + window waits for record n, so it is less before that.
  std::atomic<uint64_t> done[window];

  void finish(uint64_t number);
  bool is_done(uint64_t number) const { return done[number % window].load() >= number; }
};

class Ipc {
 public:
  explicit Ipc(State &state) : state_(state) {}
  Status export_memory(Block &block, IpcHandle *handle);
  Status import_memory(const IpcHandle &handle, void **address);
  Status close_memory(std::unique_lock<std::mutex> &lock, void *address);
  // The same at a place that the caller has reserved, from the first whole page of the memory on. This process may be the
  // exporter. The place is reserved again when the memory is unmapped.
  Status map_memory(const IpcHandle &handle, void *place, size_t size);
  Status unmap_memory(std::unique_lock<std::mutex> &lock, void *place);
  // The memory of an exported block is given back.
  void withdraw(const Block &block);
  // The records of an event are those above *first; the words of a slot go on from one event to the next.
  Status create_event(SharedEvent **event, uint64_t *first);
  void destroy_event(SharedEvent *event);
  Status export_event(const SharedEvent *event, uint64_t first, int device, IpcHandle *handle);
  Status import_event(const IpcHandle &handle, SharedEvent **event, uint64_t *first, int *device);

 private:
  struct Import {
    uintptr_t base = 0;  // what the caller has
    uintptr_t hidden = 0, view = 0;
    size_t mapped = 0;
    int users = 0;
  };
  Status open(const IpcHandle &from, size_t first, size_t length, void *place, Import *import);
  void add(const IpcHandle &from, const Import &import, uintptr_t view, size_t size);
  void give_back(std::unique_lock<std::mutex> &lock, const Import &closed);

  State &state_;
  std::map<std::pair<int, uint64_t>, Import> imports_;         // by process and identity
  std::map<uintptr_t, Import> mapped_;                         // by place
  std::map<std::pair<int, int>, SharedEvent *> event_tables_;  // of other processes, by process and descriptor
  SharedEvent *events_ = nullptr;
  int events_fd_ = -1;
};

}  // namespace emulator
