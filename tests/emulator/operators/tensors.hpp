// tensors.hpp has the CPU's view of a device tensor, and the memory that a tensor uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "../core/runtime.hpp"

namespace operators {

// Returns a CPU tensor over the same memory, for use by tasks of the emulator. It does not own the memory.
at::Tensor cpu_view(const at::Tensor &tensor);

// Appends the memory that a device tensor uses: one range for each run of adjacent elements, or one for all with the holes
// between them if there are too many runs.
void append_ranges(const at::Tensor &tensor, std::vector<emulator::Range> *ranges);

}  // namespace operators
