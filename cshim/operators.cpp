// operators.cpp registers collectives of tensors in host memory as operators of torch, sagecomm::NAME, for programs that
// torch.compile() compiles and that need the result at once. torch's own, _c10d_functional::NAME, are asynchronous: each needs
// a second operator that waits. _native.py marks them for compilers, which then call them also on a rank that does not use
// the result. The constant folder of inductor (config.freezing) does not look at the mark: it calls all_gather of a constant
// once, when it compiles.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "compat.hpp"
#include "process_group.hpp"

namespace sagecomm {

namespace {

std::vector<c10::SymInt> gatheredSizes(const at::Tensor& input, int64_t ranks) {
  TORCH_CHECK(input.dim() > 0, "sagecomm: all_gather: a tensor without dimensions cannot be concatenated");
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes[0] = sizes[0] * ranks;
  return sizes;
}

// Turns the ranks' tensors, one behind the other along dimension 0, into their concatenation along `dim`.
at::Tensor concatenated(const at::Tensor& gathered, const at::Tensor& input, int64_t dim, int64_t ranks) {
  if (dim == 0) {
    return gathered;
  }
  std::vector<c10::SymInt> apart = input.sym_sizes().vec();
  apart.insert(apart.begin(), c10::SymInt(ranks));
  std::vector<c10::SymInt> whole = input.sym_sizes().vec();
  whole[dim] = whole[dim] * ranks;
  return gathered.view_symint(apart).movedim(0, dim).reshape_symint(whole);
}

// The backend is called without torch's operators of c10d, whose only work is to find it. While a group collects the calls of a
// coalescing window, a call would be issued when the window closes.
c10::intrusive_ptr<c10d::Backend> backendOf(const char* name, c10d::ProcessGroup& group, const at::Tensor& tensor) {
  auto backend = group.getBackend(tensor.device().type());
  auto* ours = dynamic_cast<ProcessGroupSagecomm*>(backend.get());
  TORCH_CHECK(
      ours == nullptr || !ours->collects(),
      "sagecomm::",
      name,
      " is complete when it returns, so it cannot be a part of a coalescing window");
  return backend;
}

void allReduce(const at::Tensor& tensor, const std::string& groupName) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  const auto group = c10d::resolve_process_group(groupName);
  backendOf("all_reduce_", *group, tensor)->allreduce(tensors, options)->wait();
}

void allReduceWithoutDerivative(const at::Tensor& tensor, const std::string& groupName) {
  TORCH_CHECK(
      !at::GradMode::is_enabled() || !tensor.requires_grad(),
      "sagecomm::all_reduce_ has no derivative: use torch.no_grad()");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("sagecomm::all_reduce_", "")
                             .typed<void(const at::Tensor&, const std::string&)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(tensor, groupName);
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void allReduceMeta(const at::Tensor& /*tensor*/, const std::string& /*groupName*/) {
}

at::Tensor allGather(const at::Tensor& input, int64_t dim, const std::string& groupName) {
  dim = c10::maybe_wrap_dim(dim, input.dim()); // before the peers are kept waiting
  const auto group = c10d::resolve_process_group(groupName);
  at::Tensor gathered = input.new_empty_symint(gatheredSizes(input, group->getSize()));
  at::Tensor contiguous = input.contiguous();
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  const auto backend = backendOf("all_gather", *group, input);
  allGatherSingle(*backend, gathered, contiguous, options)->wait();
  return concatenated(gathered, input, dim, group->getSize());
}

at::Tensor allGatherMeta(const at::Tensor& input, int64_t dim, const std::string& groupName) {
  dim = c10::maybe_wrap_dim(dim, input.dim());
  const int64_t ranks = c10d::resolve_process_group(groupName)->getSize();
  return concatenated(input.new_empty_symint(gatheredSizes(input, ranks)), input, dim, ranks);
}

} // namespace

// all_reduce_ sums in place. all_gather returns the concatenation of the ranks' tensors, which have one shape, along `dim`.
TORCH_LIBRARY(sagecomm, library) {
  library.def("all_reduce_(Tensor(a!) tensor, str group_name) -> ()");
  library.def("all_gather(Tensor input, int dim, str group_name) -> Tensor");
}

TORCH_LIBRARY_IMPL(sagecomm, CPU, library) {
  library.impl("all_reduce_", allReduce);
  library.impl("all_gather", allGather);
}

TORCH_LIBRARY_IMPL(sagecomm, Autograd, library) {
  library.impl("all_reduce_", allReduceWithoutDerivative);
  library.impl("all_gather", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(sagecomm, Meta, library) {
  library.impl("all_reduce_", allReduceMeta);
  library.impl("all_gather", allGatherMeta);
}

} // namespace sagecomm
