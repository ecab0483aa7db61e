// One boxed function is the kernel of every operator that nothing else here implements. It
// - finds the shapes of new results by running the operator on meta tensors,
// - allocates the results,
// - queues the CPU's kernel on the current stream, over CPU views of the same memory. The schema tells what it writes.
//
// An operator without a meta kernel, or whose results depend on the data, is waited for, as real devices do. That way its
// error is raised to the caller as well. An error of a task that nobody waits for is kept for take_operator_errors(). An
// operator without new results is not run on meta tensors: torch's meta kernels in Python take seconds to import.
#include "operators.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "hooks.hpp"
#include "streams.hpp"
#include "tensors.hpp"

namespace simdev {
namespace {

using c10::IValue;
using torch::jit::Stack;

std::mutex errors_mutex;
std::vector<std::string> errors;

// Calls `visit` with each defined tensor in a value.
template <class Visit>
void each_tensor(const IValue &value, Visit visit) {
  auto visit_one = [&](const at::Tensor &tensor) {
    if (tensor.defined()) visit(tensor);
  };
  if (value.isTensor()) {
    visit_one(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor &tensor : value.toTensorVector()) visit_one(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto &tensor : value.toOptionalTensorVector())
      if (tensor.has_value()) visit_one(*tensor);
  }
}

// Returns the value with each defined tensor replaced.
template <class Replace>
IValue replace_tensors(const IValue &value, Replace replace) {
  auto replace_one = [&](const at::Tensor &tensor) { return tensor.defined() ? replace(tensor) : tensor; };
  if (value.isTensor()) return replace_one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &tensor : value.toTensorVector()) list.push_back(replace_one(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto &tensor : value.toOptionalTensorVector())
      list.push_back(tensor.has_value() ? std::optional(replace_one(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// Single numbers of the CPU stay what they are: meta kernels may ask for their value.
at::Tensor as_meta(const at::Tensor &tensor) {
  if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// A CPU tensor among the arguments is read now and not when the task runs.
at::Tensor snapshot(const at::Tensor &tensor) {
  at::Tensor copy = tensor.clone();
  // Single numbers of Python take part in type promotion in another way than tensors do.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

// A call of an operator, and what is known about it.
class Operation {
 public:
  Operation(const c10::OperatorHandle &op, Stack arguments);
  // Reports whether the operator makes tensors, or gives memory to an out= argument that has none.
  bool has_new_results() const;
  // Runs the operator on meta tensors. Reports whether that was possible.
  bool find_shapes();
  void allocate_results();
  // Queues the operator; the arguments and results are the ones that the caller sees.
  Stack launch();
  // Runs the operator, waits for it, and puts the results on the device.
  Stack wait_for();

 private:
  struct Job;
  bool writes(size_t argument) const;
  bool is_out(size_t argument) const;  // a tensor that takes the result, and its shape
  void check_tensor(const at::Tensor &tensor, bool in_list) const;
  std::shared_ptr<Job> job();
  IValue seeded(const IValue &argument) const;
  void queue(const std::shared_ptr<Job> &job, bool now);
  const IValue &aliased(size_t result) const;

  const c10::OperatorHandle &op_;
  const c10::FunctionSchema &schema_;
  const std::string name_;
  Stack arguments_;
  c10::Device device_;
  Stack meta_arguments_, meta_results_;
  std::vector<emulator::Range> reads_, writes_;
  Stack results_;                      // new ones; none where a result is one of the arguments
  std::vector<at::Tensor> new_views_;  // of the tensors among them
};

// What runs on the device.
struct Operation::Job {
  c10::OperatorHandle op;
  Stack stack;
  std::vector<at::Tensor> results;  // that take the elements of new results; empty if the caller takes them from the stack
  std::vector<bool> is_new;
  std::vector<std::pair<at::Tensor, std::vector<int64_t>>> outs;  // out= arguments and their sizes
  std::string error;

  void run(bool keep_error) {
    try {
      at::AutoDispatchBelowADInplaceOrView guard;
      op.callBoxed(&stack);
      for (const auto &[out, sizes] : outs)
        TORCH_CHECK(keep_error || out.sizes() == sizes, "the result has the shape ", out.sizes(),
                    " and the out= argument has ", sizes);
      size_t next = 0;
      for (size_t i = 0; i < stack.size() && !results.empty(); i++)
        if (is_new[i])
          each_tensor(stack[i], [&](const at::Tensor &tensor) { results.at(next++).copy_(tensor); });
      if (!keep_error) stack.clear();
    } catch (const std::exception &failure) {
      error = failure.what();
      if (keep_error) return;
      std::lock_guard lock(errors_mutex);
      errors.push_back(c10::toString(op.operator_name()) + ": " + error);
    }
  }
};

Operation::Operation(const c10::OperatorHandle &op, Stack arguments)
    : op_(op),
      schema_(op.schema()),
      name_(c10::toString(op.operator_name())),
      arguments_(std::move(arguments)),
      device_(device_of(current_device())) {
  bool found = false;
  for (const IValue &argument : arguments_) {
    each_tensor(argument, [&](const at::Tensor &tensor) {
      if (is_ours(tensor) && !std::exchange(found, true)) device_ = tensor.device();
    });
    if (!found && argument.isDevice()) device_ = device_of(index_of(argument.toDevice()));
  }
  for (const IValue &argument : arguments_)
    each_tensor(argument, [&](const at::Tensor &tensor) { check_tensor(tensor, !argument.isTensor()); });
}

// Like other devices, this one takes CPU tensors as single numbers and as indices only.
void Operation::check_tensor(const at::Tensor &tensor, bool in_list) const {
  bool legal = is_ours(tensor) ? tensor.device() == device_ : tensor.is_cpu() && (tensor.dim() == 0 || in_list);
  TORCH_CHECK(legal, "simdev: ", name_, ": expected all tensors to be on the same device, but found at least two, ",
              device_, " and ", tensor.device());
}

// The schemas of batch norm do not say that it writes the running statistics.
bool Operation::writes(size_t argument) const {
  const c10::Argument &what = schema_.arguments()[argument];
  if (what.alias_info() != nullptr && what.alias_info()->isWrite()) return true;
  return name_.find("native_batch_norm") != std::string::npos && name_.find("backward") == std::string::npos &&
         (what.name() == "running_mean" || what.name() == "running_var");
}

bool Operation::is_out(size_t argument) const {
  return schema_.arguments()[argument].kwarg_only() && writes(argument) && arguments_[argument].isTensor() &&
         is_ours(arguments_[argument].toTensor());
}

bool Operation::has_new_results() const {
  for (size_t i = 0; i < schema_.returns().size(); i++)
    if (aliased(i).isNone()) return true;
  for (size_t i = 0; i < arguments_.size(); i++)
    if (is_out(i) && arguments_[i].toTensor().numel() == 0) return true;
  return false;
}

bool Operation::find_shapes() {
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

// Returns the argument that a result is, none if the result is a new one.
const IValue &Operation::aliased(size_t result) const {
  static const IValue none;
  const c10::AliasInfo *info = schema_.returns()[result].alias_info();
  for (size_t i = 0; info != nullptr && i < arguments_.size(); i++) {
    const c10::AliasInfo *argument = schema_.arguments()[i].alias_info();
    if (argument != nullptr && argument->beforeSets() == info->beforeSets()) return arguments_[i];
  }
  return none;
}

void Operation::allocate_results() {
  for (size_t i = 0; i < arguments_.size(); i++)
    if (is_out(i)) arguments_[i].toTensor().resize_(meta_arguments_[i].toTensor().sizes());
  for (size_t i = 0; i < schema_.returns().size(); i++) {
    if (!aliased(i).isNone()) {
      results_.emplace_back();
      continue;
    }
    results_.push_back(replace_tensors(meta_results_[i], [&](const at::Tensor &meta) {
      at::Tensor result =
          at::empty_strided(meta.sizes(), meta.strides(), at::TensorOptions().dtype(meta.dtype()).device(device_));
      append_ranges(result, &writes_);
      new_views_.push_back(cpu_view(result));
      return result;
    }));
  }
}

// Returns a generator for the CPU's kernel. The numbers are those of the moment of the call and not of the task.
IValue Operation::seeded(const IValue &argument) const {
  at::Generator generator = argument.isGenerator() ? argument.toGenerator() : default_generator(device_.index());
  TORCH_CHECK(generator.device().type() == device_type, "simdev: ", name_, ": expected a generator of simdev, got one of ",
              generator.device());
  std::lock_guard lock(generator.mutex());
  return at::detail::createCPUGenerator(generator.get<at::CPUGeneratorImpl>()->random64());
}

std::shared_ptr<Operation::Job> Operation::job() {
  auto job = std::make_shared<Job>(Job{op_, {}, new_views_, {}, {}, {}});
  for (size_t i = 0; i < arguments_.size(); i++) {
    each_tensor(arguments_[i], [&](const at::Tensor &tensor) {
      if (is_ours(tensor)) append_ranges(tensor, writes(i) ? &writes_ : &reads_);
    });
    IValue value = replace_tensors(
        arguments_[i], [](const at::Tensor &tensor) { return is_ours(tensor) ? cpu_view(tensor) : snapshot(tensor); });
    if (value.isDevice()) value = c10::Device(at::kCPU);
    if (schema_.arguments()[i].type()->str().find("Generator") != std::string::npos) value = seeded(value);
    if (is_out(i)) job->outs.emplace_back(value.toTensor(), value.toTensor().sizes().vec());
    job->stack.push_back(value);
  }
  for (size_t i = 0; i < schema_.returns().size(); i++) job->is_new.push_back(aliased(i).isNone());
  return job;
}

void Operation::queue(const std::shared_ptr<Job> &job, bool now) {
  StreamCall call = [name = name_, reads = reads_, writes = writes_, job, now](emulator::StreamHandle stream) {
    return emulator::launch(stream, name, reads, writes, [job, now] { job->run(now); });
  };
  Stream &stream = current_stream(device_.index());
  now ? submit_now(stream, name_, call) : submit(stream, name_, call);
}

Stack Operation::launch() {
  queue(job(), false);
  results_.resize(schema_.returns().size());
  for (size_t i = 0; i < results_.size(); i++)
    if (!aliased(i).isNone()) results_[i] = aliased(i);
  return results_;
}

Stack Operation::wait_for() {
  std::shared_ptr<Job> done = job();
  queue(done, true);
  synchronize(current_stream(device_.index()));
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

void kernel(const c10::OperatorHandle &op, c10::DispatchKeySet /*keys*/, Stack *stack) {
  size_t count = op.schema().arguments().size();
  auto first = stack->end() - static_cast<std::ptrdiff_t>(count);
  Operation operation(op, Stack(std::make_move_iterator(first), std::make_move_iterator(stack->end())));
  stack->erase(first, stack->end());
  Stack results;
  bool known = true;
  if (operation.has_new_results()) {
    known = operation.find_shapes();
    if (known) operation.allocate_results();
  }
  results = known ? operation.launch() : operation.wait_for();
  stack->insert(stack->end(), results.begin(), results.end());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
}

}  // namespace

std::vector<std::string> take_operator_errors() {
  std::lock_guard lock(errors_mutex);
  return std::exchange(errors, {});
}

}  // namespace simdev
