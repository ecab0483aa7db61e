// reduction.cpp maps each ReduceOp of torch, and reads the factor of PREMUL_SUM. See reduction.hpp.
#include "reduction.hpp"

#include <ATen/ATen.h>

#include "errors.hpp"

namespace sagecomm {

namespace {

// Reads the factor of PREMUL_SUM, which may be a tensor of one element on any device.
double premulFactor(const char* name, const c10d::ReduceOp& reduction) {
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
  return factor.item<double>();
}

} // namespace

void setReduction(sagecomm_op& op, const char* name, const c10d::ReduceOp& reduction) {
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
      op.factor = premulFactor(name, reduction);
      return;
    default:
      refuse(name, "unknown reduction " + std::to_string(static_cast<int>(reduction.op_)));
  }
}

} // namespace sagecomm
