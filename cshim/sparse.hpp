// sparse.hpp: all_reduce of sparse tensors. How many elements a rank has is not known to the others, so each rank sends its
// own to all others as messages, and sums what it has got in rank order: the result has the same bits on all ranks. An
// all_gather of how much there is begins it, which gives the call its place among the collectives of the group. Messages
// have an order of their own, and tags that users cannot have, so collectives that are issued meanwhile are not disturbed,
// and nobody waits inside the call.
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

// `number` counts the calls of the group, `ephemeral` is part of the timeout. The tensor, of layout COO, gets the sum, with the rounding of dense sums: halves are
// added as fp32 and rounded once. Without the GIL.
c10::intrusive_ptr<c10d::Work> allReduceSparse(
    const SparseGroup& group,
    int64_t number,
    const at::Tensor& tensor,
    std::chrono::milliseconds timeout,
    EphemeralTimeout::Share&& ephemeral);

} // namespace sagecomm
