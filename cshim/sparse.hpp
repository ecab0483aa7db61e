// sparse.hpp: all_reduce of sparse tensors. How many elements a rank has is not known to the others, so each rank sends its
// own to all others as messages, and sums what it has got in rank order: the result has the same bits on all ranks. An
// all_gather of how much there is begins it, which gives the call its place among the collectives of the group. Messages
// have an order of their own, and tags that users cannot have, so collectives that are issued meanwhile are not disturbed,
// and nobody waits inside the call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "sagecomm.h"
#include "work.hpp"

namespace sagecomm {

// The sparse sums of one group. The core knows of their parts only, and between two of them of none.
class SparseCalls {
 public:
  // Counts from 0.
  int64_t begin();
  void end();
  void waitForAll(std::chrono::milliseconds longest);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t begun_ = 0;
  int64_t unfinished_ = 0;
};

struct SparseGroup {
  sagecomm_group group;
  int rank;
  int size;
  std::shared_ptr<const GroupInfo> info;
  std::shared_ptr<SparseCalls> calls;
};

// The tensor, of layout COO, gets the sum. Without the GIL.
c10::intrusive_ptr<c10d::Work> allReduceSparse(
    const SparseGroup& group, const at::Tensor& tensor, std::chrono::milliseconds timeout);

} // namespace sagecomm
