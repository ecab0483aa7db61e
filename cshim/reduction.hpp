// reduction.hpp translates torch's reductions into the core's. It is used on the thread that calls torch.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "sagecomm.h"

namespace sagecomm {

// Fills op.reduce_op, and op.factor for PREMUL_SUM. `name` is the operation, for error texts.
void setReduction(sagecomm_op& op, const char* name, const c10d::ReduceOp& reduction);

} // namespace sagecomm
