// reduction.cpp maps each ReduceOp of torch, and reads the factor of PREMUL_SUM. See reduction.hpp.
#include "reduction.hpp"

#include <ATen/ATen.h>

#include "errors.hpp"

namespace sagecomm {

namespace {

bool isScaled(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble ||
         type == at::kComplexFloat || type == at::kComplexDouble;
}

// Returns the factor of PREMUL_SUM, which may be a tensor of one element on any device. It is read here if it is not on the device of
// the inputs.
double premulFactor(Call& call, const c10d::ReduceOp& reduction) {
  const char* const name = call.info.name;
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(reduction.supplement_.get());
  if (supplement == nullptr) {
    refuse(name, "PREMUL_SUM has no factor; make it with torch.distributed._make_nccl_premul_sum(factor)");
  }
  const at::Tensor& factor = supplement->tensor_factor;
  if (!factor.defined()) {
    return supplement->double_factor;
  }
  if (factor.numel() != 1 || factor.is_complex()) {
    refuse(name, "the factor of PREMUL_SUM must be one real number");
  }
  call.buffers.prepareCopy(factor);
  if (const c10::Device* const on = call.buffers.device(); on != nullptr && *on == factor.device()) {
    for (size_t i = 0; i < call.inputs.size() && isScaled(call.inputs[i].scalar_type());
         i++) { // the core refuses others
      const Buffers::Own own = call.buffers.ownInput(i, call.inputs[i]);
      multiply(own.memory, own.value, factor);
    }
    return 1;
  }
  return factor.item<double>();
}

} // namespace

void setReduction(Call& call, const c10d::ReduceOp& reduction) {
  sagecomm_op& op = call.op;
  switch (reduction.op_) {
    case c10d::ReduceOp::SUM:
      op.reduce_op = SAGECOMM_SUM;
      return;
    case c10d::ReduceOp::AVG:
      op.reduce_op = SAGECOMM_AVG;
      return;
    case c10d::ReduceOp::PRODUCT:
      op.reduce_op = SAGECOMM_PRODUCT;
      return;
    case c10d::ReduceOp::MIN:
      op.reduce_op = SAGECOMM_MIN;
      return;
    case c10d::ReduceOp::MAX:
      op.reduce_op = SAGECOMM_MAX;
      return;
    case c10d::ReduceOp::BAND:
      op.reduce_op = SAGECOMM_BAND;
      return;
    case c10d::ReduceOp::BOR:
      op.reduce_op = SAGECOMM_BOR;
      return;
    case c10d::ReduceOp::BXOR:
      op.reduce_op = SAGECOMM_BXOR;
      return;
    case c10d::ReduceOp::PREMUL_SUM:
      op.reduce_op = SAGECOMM_PREMUL_SUM;
      op.factor = premulFactor(call, reduction);
      return;
    default:
      refuse(call.info.name, "unknown reduction " + std::to_string(static_cast<int>(reduction.op_)));
  }
}

} // namespace sagecomm
