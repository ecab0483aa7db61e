// checks.hpp checks the arguments of torch's calls that the core cannot check. Each check refuses with a sentence that begins
// with the operation. They run on the thread that calls torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tensors.hpp"

namespace sagecomm {

// Returns a number of ranks as texts have it: "1 rank", "2 ranks".
std::string countRanks(int n);

// Returns the only tensor of a list.
const at::Tensor& onlyTensor(const char* op, const std::vector<at::Tensor>& tensors);

void checkRank(const char* op, const char* what, int64_t rank, int size);

// Returns the only list of `lists`, which has a tensor for each rank.
const std::vector<at::Tensor>& onlyList(
    const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists, int size);

void checkNoList(const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists);

// Refuses a list that is not as long as another one.
void checkCount(const char* op, const char* role, size_t got, const char* like, size_t want);

// Named is a tensor as error texts name it: "input 3", or "this rank's output".
struct Named {
  static constexpr size_t kAlone = SIZE_MAX;
  const char* role;
  size_t index = kAlone;
};

void checkElements(const char* op, Named what, int64_t got, Named like, int64_t want);

// Checks a tensor that has room for `one` elements of each rank.
void checkSingle(const char* op, const char* role, int64_t all, const char* oneRole, int64_t one, int size);

// Returns the bytes of the blocks that split a tensor along its first dimension; an empty list where blocks are equal.
Buffers::Blocks splitBytes(
    const char* op, const char* role, const at::Tensor& t, const std::vector<int64_t>& splits, int size);

// Refuses a tensor that is not contiguous in its memory format. Torch's own backends do so for all_to_all_single, and its
// tests of all backends look for these words.
void checkContiguous(const char* op, const char* role, const at::Tensor& t);

void checkRootTensor(const char* op, int64_t rootTensor);

void checkTag(const char* op, int tag);

// Reports whether any output overlaps any input.
bool anyOverlap(c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs);

// Reports whether an output shares memory with an input. This rank's own input does not count if it is the output itself.
bool overlapsOthers(const at::Tensor& output, c10::ArrayRef<at::Tensor> inputs, int rank);

// The same where the inputs are the blocks of one tensor.
bool overlapsOtherBlocks(const at::Tensor& output, const at::Tensor& input, int rank, int size);

} // namespace sagecomm
