// checks.cpp compares counts, sizes, splits and memory of tensors. See checks.hpp.
#include "checks.hpp"

#include "errors.hpp"

namespace sagecomm {

const at::Tensor& onlyTensor(const char* op, const std::vector<at::Tensor>& tensors) {
  if (C10_UNLIKELY(tensors.size() != 1)) {
    refuse(op, "takes a list of one tensor, got " + std::to_string(tensors.size()));
  }
  return tensors[0];
}

std::string countRanks(int n) {
  return n == 1 ? "1 rank" : std::to_string(n) + " ranks";
}

void checkRank(const char* op, const char* what, int64_t rank, int size) {
  if (C10_UNLIKELY(rank < 0 || rank >= size)) {
    refuse(
        op, std::string("invalid ") + what + " rank: " + std::to_string(rank) + ", the group has " + countRanks(size));
  }
}

const std::vector<at::Tensor>& onlyList(
    const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists, int size) {
  if (C10_UNLIKELY(lists.size() != 1 || lists[0].size() != static_cast<size_t>(size))) {
    refuse(
        op,
        "takes one list of " + std::to_string(size) + " " + role + " tensors, got " +
            (lists.size() == 1 ? "one of " + std::to_string(lists[0].size())
                               : std::to_string(lists.size()) + " lists"));
  }
  return lists[0];
}

void checkNoList(const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists) {
  if (C10_UNLIKELY(!lists.empty() && !(lists.size() == 1 && lists[0].empty()))) {
    refuse(op, std::string("takes ") + role + " tensors on the root only");
  }
}

void checkElements(const char* op, Named what, int64_t got, Named like, int64_t want) {
  const auto name = [](Named t) {
    return t.index == Named::kAlone ? std::string(t.role) : std::string(t.role) + " " + std::to_string(t.index);
  };
  if (C10_UNLIKELY(got != want)) {
    refuse(
        op, name(what) + " has " + std::to_string(got) + " elements, " + name(like) + " has " + std::to_string(want));
  }
}

void checkSingle(const char* op, const char* role, int64_t all, const char* oneRole, int64_t one, int size) {
  if (C10_UNLIKELY(all != one * size)) {
    refuse(
        op,
        std::string("the ") + role + " has " + std::to_string(all) + " elements; " + countRanks(size) + " with " +
            oneRole + "s of " + std::to_string(one) + " elements each " + (size == 1 ? "needs " : "need ") +
            std::to_string(one * size));
  }
}

Buffers::Blocks splitBytes(
    const char* op, const char* role, const at::Tensor& t, const std::vector<int64_t>& splits, int size) {
  Buffers::Blocks bytes;
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse(
          op,
          std::string("the first dimension of the ") + role + ", " + std::to_string(rows) +
              ", cannot be split into equal blocks for " + std::to_string(size) + " ranks");
    }
    return bytes;
  }
  if (splits.size() != static_cast<size_t>(size)) {
    refuse(op, std::to_string(splits.size()) + " split sizes for the " + role + ", the group has " + countRanks(size));
  }
  int64_t sum = 0;
  for (const int64_t n : splits) {
    if (n < 0) {
      refuse(op, std::string("a split size of the ") + role + " is negative: " + std::to_string(n));
    }
    sum += n;
  }
  if (sum != rows) {
    refuse(
        op,
        std::string("the split sizes of the ") + role + " add up to " + std::to_string(sum) +
            ", its first dimension is " + std::to_string(rows));
  }
  const uint64_t row = rows == 0 ? 0 : t.nbytes() / static_cast<uint64_t>(rows);
  for (const int64_t n : splits) {
    bytes.push_back(static_cast<uint64_t>(n) * row);
  }
  return bytes;
}

bool anyOverlap(c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs) {
  for (const at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs) {
      if (output.defined() && input.defined() && overlap(output, input)) {
        return true;
      }
    }
  }
  return false;
}

bool overlapsOthers(const at::Tensor& output, c10::ArrayRef<at::Tensor> inputs, int rank) {
  for (size_t i = 0; i < inputs.size(); i++) {
    const at::Tensor& input = inputs[i];
    const bool own = i == static_cast<size_t>(rank) && input.defined() && output.defined() && input.is_same(output);
    if (!own && anyOverlap(output, input)) {
      return true;
    }
  }
  return false;
}

bool overlapsOtherBlocks(const at::Tensor& output, const at::Tensor& input, int rank, int size) {
  if (!output.defined() || !input.defined() || !overlap(output, input)) {
    return false;
  }
  const auto* own = static_cast<const char*>(input.const_data_ptr()) + rank * (input.nbytes() / size);
  return !input.is_contiguous() || output.const_data_ptr() != own;
}

void checkContiguous(const char* op, const char* role, const at::Tensor& t) {
  TORCH_CHECK_VALUE(
      !t.defined() || t.layout() != at::kStrided || t.is_contiguous(t.suggest_memory_format()),
      "sagecomm: ",
      op,
      ": Tensors must be contiguous: the ",
      role,
      " of size ",
      t.sizes(),
      " has strides ",
      t.strides(),
      "; pass its contiguous()");
}

void checkRootTensor(const char* op, int64_t rootTensor) {
  if (C10_UNLIKELY(rootTensor != 0)) {
    refuse(op, "invalid root tensor: " + std::to_string(rootTensor) + ", the list has one tensor");
  }
}

void checkCount(const char* op, const char* role, size_t got, const char* like, size_t want) {
  if (C10_UNLIKELY(got != want)) {
    refuse(op, std::to_string(got) + " " + role + " tensors for " + std::to_string(want) + " " + like + " tensors");
  }
}

void checkTag(const char* op, int tag) {
  if (C10_UNLIKELY(tag < 0)) {
    refuse(op, "invalid tag: " + std::to_string(tag) + "; tags are 0 or greater");
  }
}

} // namespace sagecomm
