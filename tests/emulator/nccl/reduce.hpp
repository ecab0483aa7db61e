// reduce.hpp combines values as NCCL's reductions do: in the order of ranks, f16 and bf16 in float and rounded once.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fake_nccl {

// Types of other libraries, which NCCL lacks.
constexpr auto only_int16 = static_cast<ncclDataType_t>(64), only_uint16 = static_cast<ncclDataType_t>(65);

size_t size_of(ncclDataType_t type);  // 0: no such type

// A reduction as a call means it. `scale` multiplies each input; 1 for all but PreMulSum.
struct Reduction {
  ncclRedOp_t op = ncclSum;
  double scale = 1;
};

// Writes to `to` what the inputs give. False: the type has no reductions.
bool reduce(const std::vector<const char *> &inputs, char *to, size_t count, ncclDataType_t type, Reduction reduction);

// Reads one element.
double scalar(const void *at, ncclDataType_t type);

}  // namespace fake_nccl
