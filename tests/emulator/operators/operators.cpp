#include "operators.hpp"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "operation.hpp"

namespace operators {
namespace {

DeviceType chosen{};
std::mutex errors_mutex;
std::vector<std::string> errors;

void kernel(const c10::OperatorHandle &op, c10::DispatchKeySet /*keys*/, Stack *stack) {
  auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  Operation operation(op, Stack(std::make_move_iterator(first), std::make_move_iterator(stack->end())));
  stack->erase(first, stack->end());
  for (c10::IValue &result : operation.run()) stack->push_back(std::move(result));
}

c10::KernelFunction boxed() { return c10::KernelFunction::makeFromBoxedFunction<&kernel>(); }

// Registrations last as long as the process.
std::vector<c10::RegistrationHandleRAII> &registrations() {
  static auto *all = new std::vector<c10::RegistrationHandleRAII>;
  return *all;
}

// torch warns when a kernel takes the place of another one, which is what is wanted here.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning & /*warning*/) override {}
};

bool returns_view(const c10::FunctionSchema &schema) {
  for (const c10::Argument &result : schema.returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  return false;
}

}  // namespace

const DeviceType &device_type() { return chosen; }

void set_device_type(const DeviceType &type) { chosen = type; }

void install_fallback() {
  registrations().push_back(c10::Dispatcher::singleton().registerFallback(chosen.key, boxed(), "emulator"));
}

size_t install_over_kernels(const std::function<bool(std::string_view name)> &keep) {
  c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
  size_t before = registrations().size();
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const c10::OperatorName &name : dispatcher.getRegistrationsForDispatchKey(chosen.key)) {
    auto op = dispatcher.findSchema(name);
    if (!op.has_value() || returns_view(op->schema()) || keep(name.name)) continue;
    registrations().push_back(dispatcher.registerImpl(name, chosen.key, boxed(), std::nullopt, nullptr, "emulator"));
  }
  return registrations().size() - before;
}

void keep_error(const std::string &error) {
  std::lock_guard lock(errors_mutex);
  errors.push_back(error);
}

std::vector<std::string> take_errors() {
  std::lock_guard lock(errors_mutex);
  return std::exchange(errors, {});
}

}  // namespace operators
