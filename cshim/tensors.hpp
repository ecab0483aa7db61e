// tensors.hpp: from torch's tensors to the core's segments.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "sagecomm.h"

namespace sagecomm {

// The memory of one operation. A tensor that is not a plain block of memory (not contiguous, or a lazy conjugate or
// negative) is represented by a contiguous copy; outputs are written back by copyBack(). The user's own tensors are not
// kept alive here: the call does that for a synchronous operation, the Work for one that outlives the call.
class Buffers {
 public:
  using Segments = c10::SmallVector<sagecomm_segment, 8>;
  using Blocks = c10::SmallVector<uint64_t, 8>;

  // Each of them checks the tensor and refuses it by name: "sagecomm: <op>: <role> <index> is on cuda:0, but ...".
  void addInput(const char* op, const char* role, size_t index, const at::Tensor& t);
  // Staged: into a copy, which copyBack() writes to the tensor, because the operation must not write to it meanwhile.
  void addOutput(const char* op, const char* role, size_t index, const at::Tensor& t, bool staged = false);
  // A list of them; where two share memory, the later one has the last word.
  void addOutputs(const char* op, const char* role, c10::ArrayRef<at::Tensor> tensors, bool staged = false);
  // In place: the same memory is input and output.
  void addInOut(const char* op, const char* role, size_t index, const at::Tensor& t);

  // Of an all_gather or gather, after its input and outputs were added: the input may be the rank's own block of the
  // output. Where it overlaps anything else, a copy takes its place.
  void separateInput(const at::Tensor& input, int rank);

  // Block i is segment i, after all of them were added; or the blocks' bytes.
  void setInBlocks();
  void setOutBlocks();
  void setInBlocks(c10::ArrayRef<uint64_t> bytes) {
    inBlocks_.assign(bytes.begin(), bytes.end());
  }
  void setOutBlocks(c10::ArrayRef<uint64_t> bytes) {
    outBlocks_.assign(bytes.begin(), bytes.end());
  }
  // nullptr: blocks are equal.
  const uint64_t* inBlocks() const {
    return inBlocks_.empty() ? nullptr : inBlocks_.data();
  }
  const uint64_t* outBlocks() const {
    return outBlocks_.empty() ? nullptr : outBlocks_.data();
  }

  const Segments& in() const {
    return in_;
  }
  const Segments& out() const {
    return out_;
  }
  // sagecomm_dtype of all tensors: one type per operation.
  uint8_t dtype() const {
    return dtype_ == kNoType ? 0 : dtype_; // a barrier moves nothing, of any type
  }
  // Whether copies stand for some tensors.
  bool copied() const {
    return !copies_.empty() || !copyBack_.empty();
  }
  // Whether outputs wait to be written back.
  bool staged() const {
    return !copyBack_.empty();
  }
  // Takes over what another operation's tensors need: copies to keep alive and outputs to write back. Its segments stay.
  void keep(Buffers& other);
  // Writes staged outputs to the user's tensors. On any thread, without autograd.
  void copyBack();

 private:
  void check(const char* op, const char* role, size_t index, const at::Tensor& t);
  // Refuses an output, not a plain block, that cannot be written back.
  static void checkWritable(const char* op, const char* role, size_t index, const at::Tensor& t);

  static constexpr uint8_t kNoType = 255;

  Segments in_;
  Segments out_;
  Blocks inBlocks_;
  Blocks outBlocks_;
  uint8_t dtype_ = kNoType;
  std::vector<at::Tensor> copies_; // inputs' copies, alive until the operation has finished
  std::vector<std::pair<at::Tensor, at::Tensor>> copyBack_; // {the user's output, its copy}
};

// Whether all elements lie inside the tensor's storage.
bool hasMemory(const at::Tensor& t);

// From the first byte of a tensor to behind its last one; nothing where it has none.
struct Extent {
  const char* from;
  const char* end;

  bool meets(const Extent& other) const {
    return from < other.end && other.from < end;
  }
};

Extent extentOf(const at::Tensor& t);

// Whether two tensors have memory in common. False for columns, and the like, of one tensor; true where that cannot be
// told.
bool overlap(const at::Tensor& a, const at::Tensor& b);

} // namespace sagecomm
