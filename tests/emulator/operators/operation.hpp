// operation.hpp has one call of an operator and what is known about it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <vector>

#include "operators.hpp"

namespace operators {

using torch::jit::Stack;

const DeviceType &device_type();

class Operation {
 public:
  // Raises if the arguments are on different devices.
  Operation(const c10::OperatorHandle &op, Stack arguments);
  // Carries the call out and returns its results. The caller waits only where a real device would make it wait, too.
  Stack run();

 private:
  struct Job;
  bool writes(size_t argument) const;
  void check_tensor(const at::Tensor &tensor, bool in_list) const;
  // Reports whether the size of a result, or a number that the caller gets, depends on the elements.
  bool depends_on_data() const;
  // Reports whether the argument is a tensor that takes the result, and its shape if it is empty.
  bool is_out(size_t argument) const;
  // Reports whether the operator makes tensors, or gives memory to an out= argument.
  bool has_new_results() const;
  // Runs the operator on meta tensors if it has new results. Reports whether their shapes are known. Other operators are
  // not run on meta tensors: torch's meta kernels in Python take more than a second to import.
  bool find_shapes();
  void allocate_results();
  Stack launch();    // queues the operator
  Stack wait_for();  // queues the operator, waits for it, and puts new results on the device
  std::shared_ptr<Job> job();
  void queue(const std::shared_ptr<Job> &job, bool now);
  // Returns the argument that a result is, none if the result is a new one.
  const c10::IValue &aliased(size_t result) const;
  c10::IValue seeded_generator(const c10::IValue &given) const;
  bool ours(const at::Tensor &tensor) const { return tensor.device().type() == device_.type(); }

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

// Keeps an error of a task for take_errors().
void keep_error(const std::string &error);

}  // namespace operators
