// sparse.hpp is the all_reduce of sparse tensors. A rank does not know how many elements the others have. So an all_gather
// of headers comes first, which says how many, and gives the call its place among the collectives of the group. Then each
// rank sends its elements to every other rank with p2p operations, and adds what it has received in rank order: the result
// has the same bits on all ranks. The p2p operations have an order of their own and tags that users cannot have, so
// collectives that are issued meanwhile are not disturbed, and nobody waits inside the call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "sagecomm.h"
#include "work.hpp"

namespace sagecomm {

struct SparseGroup {
  sagecomm_group group;
  int rank;
  int size;
  std::shared_ptr<const GroupInfo> info;
};

// Starts the operation and returns its Work. `number` counts the sparse sums of the group, `share` is included in the
// timeout. The tensor, of layout COO, gets the sum, rounded as dense sums are: fp16 and bf16 are added as fp32 and rounded
// once. Called without the GIL, on the thread that calls torch.
c10::intrusive_ptr<c10d::Work> allReduceSparse(
    const SparseGroup& group,
    int64_t number,
    const at::Tensor& tensor,
    std::chrono::milliseconds timeout,
    EphemeralTimeout::Share&& share);

} // namespace sagecomm
