// checks.hpp: what calls of torch must look like before they can be handed to the core. Each refuses with a sentence that
// begins with the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tensors.hpp"

namespace sagecomm {

const at::Tensor& onlyTensor(const char* op, const std::vector<at::Tensor>& tensors);

void checkRank(const char* op, const char* what, int64_t rank, int size);

// A list with one list of a tensor for each rank.
const std::vector<at::Tensor>& onlyList(
    const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists, int size);

void checkNoList(const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists);

// As many tensors as there are of another list.
void checkCount(const char* op, const char* role, size_t got, const char* like, size_t want);

// A tensor as messages name it: "input 3", or "this rank's output".
struct Named {
  static constexpr size_t kAlone = SIZE_MAX;
  const char* role;
  size_t index = kAlone;
};

void checkElements(const char* op, Named what, int64_t got, Named like, int64_t want);

// The single form of a tensor of `one` elements a rank.
void checkSingle(const char* op, const char* role, int64_t all, const char* oneRole, int64_t one, int size);

// Bytes of the blocks that split a tensor along its first dimension; none: blocks are equal.
Buffers::Blocks splitBytes(
    const char* op, const char* role, const at::Tensor& t, const std::vector<int64_t>& splits, int size);

// torch's own backends refuse the single form of other tensors (channels last is contiguous for them), and its tests of
// all backends look for these words.
void checkContiguous(const char* op, const char* role, const at::Tensor& t);

void checkRootTensor(const char* op, int64_t rootTensor);

void checkTag(const char* op, int tag);

bool anyOverlap(c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs);

// Whether one output overlaps a list of inputs other than as the rank's own one.
bool overlapsOthers(const at::Tensor& output, c10::ArrayRef<at::Tensor> inputs, int rank);

// The same where the inputs are the blocks of one tensor.
bool overlapsOtherBlocks(const at::Tensor& output, const at::Tensor& input, int rank, int size);

} // namespace sagecomm
