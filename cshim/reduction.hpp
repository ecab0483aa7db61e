// reduction.hpp: torch's reductions in the core's numbering.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "sagecomm.h"

namespace sagecomm {

// Fills op.reduce_op, and op.factor for PREMUL_SUM. `name` is the operation, for messages.
void setReduction(sagecomm_op& op, const char* name, const c10d::ReduceOp& reduction);

} // namespace sagecomm
