#include "operation.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <optional>
#include <utility>

#include "../core/annotate.h"
#include "tensors.hpp"
#include "values.hpp"

namespace operators {
namespace {

using c10::IValue;

// Single numbers of the CPU stay what they are: meta kernels may ask for their value.
at::Tensor as_meta(const at::Tensor &tensor) {
  if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// A CPU tensor among the arguments is read now and not when the task runs.
at::Tensor snapshot(const at::Tensor &tensor) {
  emulator_host_read(tensor.const_data_ptr(), tensor.nbytes(), "an operator's CPU argument");
  at::Tensor copy = tensor.clone();
  // Single numbers of Python take part in type promotion in another way than tensors do.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

void check(emulator::Status status, const std::string &what) {
  TORCH_CHECK(status == emulator::Status::success, "emulator: ", what, ": ", emulator::name(status));
}

c10::Device current_device() { return c10::impl::VirtualGuardImpl(device_type().type).getDevice(); }

void submit(c10::DeviceIndex device, const std::string &what, const StreamCall &call, bool now) {
  if (device_type().submit != nullptr) return device_type().submit(device, what, call, now);
  check(call(device_type().current_stream(device)), what);
}

void synchronize(c10::DeviceIndex device) {
  if (device_type().synchronize != nullptr) return device_type().synchronize(device);
  check(emulator::stream_synchronize(device_type().current_stream(device)), "stream_synchronize");
}

}  // namespace

// What runs on the device. A captured job runs once for each launch of its graph.
struct Operation::Job {
  c10::OperatorHandle op;
  Stack arguments;
  std::vector<at::Tensor> results;  // that take the elements of new results
  std::vector<bool> is_new;
  std::vector<std::pair<size_t, at::Tensor>> outs;  // the places of out= arguments, and the arguments
  bool waited_for = false;
  Stack stack;        // the results, of a job that is waited for
  std::string error;  // of a job that is waited for

  void run() {
    try {
      at::AutoDispatchBelowADInplaceOrView guard;
      Stack values = arguments;
      // Some kernels resize the out= argument in between, which the device's memory does not allow.
      std::vector<at::Tensor> made;
      if (!waited_for) {
        for (const auto &[place, out] : outs) values[place] = made.emplace_back(at::empty({0}, out.options()));
      }
      op.callBoxed(&values);
      if (waited_for) {
        stack = std::move(values);
        return;
      }
      for (size_t i = 0; i < outs.size(); i++) {
        const at::Tensor &out = outs[i].second;
        TORCH_CHECK(made[i].sizes() == out.sizes(), "the result has the sizes ", made[i].sizes(),
                    " and the out= argument ", out.sizes());
        out.copy_(made[i]);
      }
      size_t next = 0;
      for (size_t i = 0; i < values.size(); i++)
        if (is_new[i]) each_tensor(values[i], [&](const at::Tensor &tensor) { results.at(next++).copy_(tensor); });
    } catch (const std::exception &failure) {
      error = failure.what();
      if (!waited_for) keep_error(c10::toString(op.operator_name()) + ": " + error);
    }
  }
};

Operation::Operation(const c10::OperatorHandle &op, Stack arguments)
    : op_(op),
      schema_(op.schema()),
      name_(c10::toString(op.operator_name())),
      arguments_(std::move(arguments)),
      device_(current_device()) {
  bool found = false;
  for (const IValue &argument : arguments_) {
    each_tensor(argument, [&](const at::Tensor &tensor) {
      if (ours(tensor) && !std::exchange(found, true)) device_ = tensor.device();
    });
    if (!found && argument.isDevice() && argument.toDevice().has_index()) device_ = argument.toDevice();
  }
  for (const IValue &argument : arguments_)
    each_tensor(argument, [&](const at::Tensor &tensor) { check_tensor(tensor, !argument.isTensor()); });
}

// Like other devices, this one takes CPU tensors as single numbers and as indices only.
void Operation::check_tensor(const at::Tensor &tensor, bool in_list) const {
  bool legal = ours(tensor) ? tensor.device() == device_ : tensor.is_cpu() && (tensor.dim() == 0 || in_list);
  TORCH_CHECK(legal, name_, ": expected all tensors to be on the same device, but found at least two, ", device_,
              " and ", tensor.device());
}

// The schemas of batch norm do not say that it writes the running statistics.
bool Operation::writes(size_t argument) const {
  const c10::Argument &what = schema_.arguments()[argument];
  if (what.alias_info() != nullptr && what.alias_info()->isWrite()) return true;
  return name_.find("native_batch_norm") != std::string::npos && name_.find("backward") == std::string::npos &&
         (what.name() == "running_mean" || what.name() == "running_var");
}

const IValue &Operation::aliased(size_t result) const {
  static const IValue none;
  const c10::AliasInfo *info = schema_.returns()[result].alias_info();
  if (info == nullptr) return none;
  TORCH_CHECK_NOT_IMPLEMENTED(info->isWrite(), name_, " returns a view, which the test device does not implement");
  for (size_t i = 0; i < arguments_.size(); i++) {
    const c10::AliasInfo *argument = schema_.arguments()[i].alias_info();
    if (argument != nullptr && argument->beforeSets() == info->beforeSets()) return arguments_[i];
  }
  return none;
}

bool Operation::depends_on_data() const {
  for (at::Tag tag : op_.getTags())
    if (tag == at::Tag::dynamic_output_shape || tag == at::Tag::data_dependent_output) return true;
  for (const c10::Argument &result : schema_.returns()) {
    c10::TypeKind kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
  }
  return false;
}

bool Operation::is_out(size_t argument) const {
  return schema_.arguments()[argument].kwarg_only() && writes(argument) && arguments_[argument].isTensor() &&
         ours(arguments_[argument].toTensor());
}

bool Operation::has_new_results() const {
  for (size_t i = 0; i < schema_.returns().size(); i++)
    if (aliased(i).isNone()) return true;
  for (size_t i = 0; i < arguments_.size(); i++)
    if (is_out(i) && arguments_[i].toTensor().numel() == 0) return true;
  return false;
}

bool Operation::find_shapes() {
  if (depends_on_data()) return false;
  if (!has_new_results()) return true;
  for (const IValue &argument : arguments_) {
    IValue meta = replace_tensors(argument, as_meta);
    if (meta.isDevice()) meta = c10::Device(at::kMeta);
    if (meta.isGenerator()) meta = IValue();
    meta_arguments_.push_back(meta);
  }
  meta_results_ = meta_arguments_;
  try {
    at::AutoDispatchBelowADInplaceOrView guard;
    op_.callBoxed(&meta_results_);
    return true;
  } catch (const std::exception &) {  // the CPU's kernel gives the error, if it is one
    return false;
  }
}

void Operation::allocate_results() {
  for (size_t i = 0; i < meta_arguments_.size(); i++) {
    if (!is_out(i)) continue;
    at::Tensor out = arguments_[i].toTensor();
    auto sizes = meta_arguments_[i].toTensor().sizes();
    if (out.sizes() != sizes) out.resize_(sizes);
  }
  for (size_t i = 0; i < schema_.returns().size(); i++) {
    if (!aliased(i).isNone()) {
      results_.emplace_back();
      continue;
    }
    results_.push_back(replace_tensors(meta_results_[i], [&](const at::Tensor &meta) {
      auto options = at::TensorOptions().dtype(meta.dtype()).device(device_);
      at::Tensor result = at::empty_strided(meta.sizes(), meta.strides(), options);
      append_ranges(result, &writes_);
      new_views_.push_back(cpu_view(result));
      return result;
    }));
  }
}

// The numbers are those of the moment of the call, and not of the moment when the task runs.
IValue Operation::seeded_generator(const IValue &given) const {
  std::optional<at::Generator> generator;
  if (given.isGenerator()) generator = given.toGenerator();
  return at::detail::createCPUGenerator(device_type().random_seed(device_.index(), generator));
}

std::shared_ptr<Operation::Job> Operation::job() {
  auto job = std::make_shared<Job>(Job{op_, {}, new_views_, {}, {}, false, {}, {}});
  for (size_t i = 0; i < arguments_.size(); i++) {
    each_tensor(arguments_[i], [&](const at::Tensor &tensor) {
      if (ours(tensor)) append_ranges(tensor, writes(i) ? &writes_ : &reads_);
    });
    IValue value = replace_tensors(
        arguments_[i], [&](const at::Tensor &tensor) { return ours(tensor) ? cpu_view(tensor) : snapshot(tensor); });
    if (value.isDevice()) value = c10::Device(at::kCPU);
    if (schema_.arguments()[i].type()->str().find("Generator") != std::string::npos) value = seeded_generator(value);
    if (is_out(i)) job->outs.emplace_back(i, value.toTensor());
    job->arguments.push_back(value);
  }
  for (size_t i = 0; i < schema_.returns().size(); i++) job->is_new.push_back(aliased(i).isNone());
  return job;
}

void Operation::queue(const std::shared_ptr<Job> &job, bool now) {
  job->waited_for = now;
  StreamCall call = [name = name_, reads = reads_, writes = writes_, job](emulator::StreamHandle stream) {
    return emulator::launch(stream, name, reads, writes, [job] { job->run(); });
  };
  submit(device_.index(), name_, call, now);
}

Stack Operation::run() {
  c10::DeviceGuard guard(device_);
  if (!find_shapes()) return wait_for();
  allocate_results();
  return launch();
}

Stack Operation::launch() {
  queue(job(), false);
  for (size_t i = 0; i < results_.size(); i++)
    if (!aliased(i).isNone()) results_[i] = aliased(i);
  return results_;
}

Stack Operation::wait_for() {
  std::shared_ptr<Job> done = job();
  queue(done, true);
  synchronize(device_.index());
  TORCH_CHECK(done->error.empty(), done->error);
  Stack results;
  for (size_t i = 0; i < schema_.returns().size(); i++) {
    const IValue &argument = aliased(i);
    auto on_device = [&](const at::Tensor &tensor) { return tensor.to(device_); };
    results.push_back(argument.isNone() ? replace_tensors(done->stack.at(i), on_device) : argument);
    // The CPU's kernel gave its view of an out= argument another shape, and other memory with it.
    if (!argument.isTensor() || argument.toTensor().sizes() == done->stack.at(i).toTensor().sizes()) continue;
    argument.toTensor().resize_(done->stack.at(i).toTensor().sizes());
    argument.toTensor().copy_(done->stack.at(i).toTensor());
  }
  return results;
}

void launch(c10::DeviceIndex device, const std::string &what, const std::vector<emulator::Range> &reads,
            const std::vector<emulator::Range> &writes, std::function<void()> run) {
  c10::DeviceGuard guard(c10::Device(device_type().type, device));
  StreamCall call = [=](emulator::StreamHandle stream) { return emulator::launch(stream, what, reads, writes, run); };
  submit(device, what, call, false);
}

}  // namespace operators
