// block_cache.hpp keeps memory that its users gave back, for the next user of the same size.
//
// A block that only one stream used is there again at once, for the same stream: work of the next user is behind that
// of the last one. A block that other streams used as well comes back when the work that these streams had at the time
// is done, and only if somebody said that they used it. Without that the memory is overwritten while it is read, and
// the checker reports it.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "streams.hpp"

namespace simdev {

struct Block {
  void *address = nullptr;
  size_t size = 0;       // of the memory
  size_t requested = 0;  // by the user
  int device = -1;       // -1: pinned memory
  c10::StreamId stream = 0;
  std::vector<Stream *> used_by;  // other streams
};

class BlockCache {
 public:
  // Returns a block with this size for this stream, null if there is none.
  Block *take(int device, c10::StreamId stream, size_t size);
  // The user gives the block back.
  void put(Block *block);
  // Another stream uses the block.
  void use(Block *block, Stream *stream);
  // Takes out all blocks that nobody uses any more. With `wait` it waits for the streams that still use some.
  std::vector<Block *> take_all(bool wait);

 private:
  struct Pending {
    Block *block;
    std::vector<std::shared_ptr<Event>> events;
  };
  void collect(bool wait);
  void keep(Block *block);

  std::mutex mutex_;  // no call that can wait is made under it
  std::map<std::tuple<int, c10::StreamId, size_t>, std::vector<Block *>> free_;
  std::list<Pending> pending_;
};

}  // namespace simdev
