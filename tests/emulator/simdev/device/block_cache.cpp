#include "block_cache.hpp"

#include <algorithm>

#include "../../core/annotate.h"

namespace simdev {

// A block is handed from one host thread to another with its key; what else the threads know of each other stays apart.
void BlockCache::keep(Block *block) {
  block->used_by.clear();
  emulator_release(block);
  std::lock_guard lock(mutex_);
  free_[{block->device, block->stream, block->size}].push_back(block);
}

Block *BlockCache::take(int device, c10::StreamId stream, size_t size) {
  collect(false);
  Block *block = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found = free_.find({device, stream, size});
    if (found == free_.end() || found->second.empty()) return nullptr;
    block = found->second.back();
    found->second.pop_back();
  }
  emulator_acquire(block);
  return block;
}

void BlockCache::put(Block *block) {
  std::vector<Stream *> used_by;
  {
    std::lock_guard lock(mutex_);
    used_by.swap(block->used_by);
  }
  if (used_by.empty()) {
    keep(block);
    return;
  }
  Pending pending{block, {}};
  for (Stream *stream : used_by) {
    pending.events.push_back(std::make_shared<Event>(stream->device, false));
    Event::record(pending.events.back(), *stream);
  }
  emulator_release(block);
  std::lock_guard lock(mutex_);
  pending_.push_back(std::move(pending));
}

void BlockCache::use(Block *block, Stream *stream) {
  if (block->device == stream->device && block->stream == stream->id) return;
  std::lock_guard lock(mutex_);
  if (std::find(block->used_by.begin(), block->used_by.end(), stream) == block->used_by.end())
    block->used_by.push_back(stream);
}

void BlockCache::collect(bool wait) {
  std::list<Pending> pending;
  {
    std::lock_guard lock(mutex_);
    pending.swap(pending_);
  }
  for (auto next = pending.begin(); next != pending.end();) {
    auto done = [&](const std::shared_ptr<Event> &event) {
      if (wait) event->synchronize();
      return event->query();
    };
    if (!std::all_of(next->events.begin(), next->events.end(), done)) {
      ++next;
      continue;
    }
    keep(next->block);
    next = pending.erase(next);
  }
  std::lock_guard lock(mutex_);
  pending_.splice(pending_.begin(), pending);
}

std::vector<Block *> BlockCache::take_all(bool wait) {
  collect(wait);
  std::lock_guard lock(mutex_);
  std::vector<Block *> all;
  for (auto &[key, blocks] : free_) all.insert(all.end(), blocks.begin(), blocks.end());
  free_.clear();
  return all;
}

}  // namespace simdev
