// values.hpp visits and replaces the tensors of an operator's arguments and results.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

namespace operators {

// Calls `visit` with each defined tensor in a value.
template <class Visit>
void each_tensor(const c10::IValue &value, Visit visit) {
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
c10::IValue replace_tensors(const c10::IValue &value, Replace replace) {
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

}  // namespace operators
