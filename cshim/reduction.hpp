// reduction.hpp translates torch's reductions into the core's. It is used on the thread that calls torch.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "call.hpp"

namespace sagecomm {

// Fills call.op.reduce_op, and for PREMUL_SUM call.op.factor. Inputs are multiplied here by a factor that is a tensor on their device,
// in the calling thread's current stream, so nobody waits for the factor, and a graph may be captured. Requires: the inputs are in
// call.buffers and call.inputs.
void setReduction(Call& call, const c10d::ReduceOp& reduction);

} // namespace sagecomm
