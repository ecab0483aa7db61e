// probe.hpp declares the functions of probe.cpp for the Python module.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <string>

namespace simdev_probe {

c10::Stream staged_copy(const at::Tensor &to, const at::Tensor &from, const at::Tensor &pinned, bool safe);
// The same on a thread that Python does not know, with the default stream as the caller's.
void staged_copy_on_thread(const at::Tensor &to, const at::Tensor &from, const at::Tensor &pinned);
std::string guard_faults(c10::Device device);

}  // namespace simdev_probe
