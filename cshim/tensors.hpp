// tensors.hpp turns torch's tensors into the core's segments, and compares the memory of tensors. It is used on the thread
// that calls torch; copyBack() may run on any thread. The GIL is not needed. Tensors of a device are copied in the calling
// thread's current stream.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include "devices.hpp"
#include "sagecomm.h"

namespace sagecomm {

// Extent reaches from the first byte of a tensor to behind its last one. It is empty for a tensor without elements.
struct Extent {
  const char* from;
  const char* end;

  bool meets(const Extent& other) const {
    return from < other.end && other.from < end;
  }
};

Extent extentOf(const at::Tensor& t);

// Runs describes the bytes of a tensor: stretches of `run` bytes whose distances are multiples of `step`. A step of 0 means
// that there is one stretch.
struct Runs {
  size_t run;
  size_t step;

  explicit Runs(const at::Tensor& t);
};

// Footprint is the memory of a tensor as it was when it was made, however the tensor changes.
struct Footprint {
  c10::Device device;
  Extent extent;
  Runs runs;

  explicit Footprint(const at::Tensor& t) : device(t.device()), extent(extentOf(t)), runs(t) {
  }
};

// Reports whether two tensors may have memory in common, as overlap() does.
bool overlap(const Footprint& a, const Footprint& b);

// Buffers is the memory of one operation. A contiguous copy stands for a tensor that is not a plain block of memory (not
// contiguous, or a lazy conjugate or negative); copyBack() writes outputs back. Buffers do not keep the user's own tensors
// alive: the call does so for a synchronous operation, the Work for one that outlives the call. All tensors of an operation are
// on the CPU or on one other device.
class Buffers {
 public:
  // `served` are the devices of the group and outlive the Buffers; null: the CPU. `collective`: the operation is no p2p operation.
  explicit Buffers(const Devices* served = nullptr, bool collective = false)
      : served_(served), collective_(collective) {
  }
  using Segments = c10::SmallVector<sagecomm_segment, 8>;
  using Blocks = c10::SmallVector<uint64_t, 8>;

  // Each function checks the tensor and refuses it by name: "sagecomm: <op>: <role> <index> is on cuda:0, but ...".
  void addInput(const char* op, const char* role, size_t index, const at::Tensor& t);
  // With `staged` the operation writes to a copy, and copyBack() writes the copy to the tensor. Needed where something else
  // reads or writes the tensor while the operation runs.
  void addOutput(const char* op, const char* role, size_t index, const at::Tensor& t, bool staged = false);
  // Adds a list of outputs. Where two share memory, the later one wins.
  void addOutputs(const char* op, const char* role, c10::ArrayRef<at::Tensor> tensors, bool staged = false);
  // Adds a tensor that is input and output. With `staged` a copy stands for it.
  void addInOut(const char* op, const char* role, size_t index, const at::Tensor& t, bool staged = false);

  // Copies the input of an all_gather or gather if it overlaps an output, unless it is this rank's block of that output.
  // Requires: input and outputs were added.
  void separateInput(const at::Tensor& input, int rank);

  // Own is memory for an input that nothing but the operation uses, and a tensor of the same shape that has the value: itself, if a
  // copy stands for the input anyway, else the input.
  struct Own {
    at::Tensor memory;
    at::Tensor value;
  };
  // Gives an input, which is `t`, memory of its own. The caller writes it before the operation is issued. An output in the memory of the
  // input stays where it is.
  Own ownInput(size_t index, const at::Tensor& t);

  // Without an argument each segment is a block; otherwise `bytes` gives the length of each block. Requires: all segments
  // were added.
  void setInBlocks();
  void setOutBlocks();
  void setInBlocks(c10::ArrayRef<uint64_t> bytes) {
    inBlocks_.assign(bytes.begin(), bytes.end());
  }
  void setOutBlocks(c10::ArrayRef<uint64_t> bytes) {
    outBlocks_.assign(bytes.begin(), bytes.end());
  }
  // The bytes of each block; null where blocks are equal.
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
  // The device of the tensors; null for the CPU.
  const c10::Device* device() const {
    return device_ == nullptr ? nullptr : &device_->device;
  }
  // Puts an operation without tensors on a device, the current one of its type if it has no index.
  void setDevice(c10::Device device);
  // Returns all tensors on the device whose memory the operation uses, copies included.
  std::vector<at::Tensor> deviceTensors() const;
  // Returns where the user's tensors on the device lie that a collective writes, copies aside.
  const std::vector<Footprint>& deviceOutputs() const;
  // Tells the groups of the process apart. A window has that of its operations.
  const void* scope() const {
    return served_;
  }
  // The sagecomm_dtype of all tensors: an operation has one type.
  uint8_t dtype() const {
    return dtype_ == kNoType ? 0 : dtype_; // a barrier has no tensors
  }
  // Reports whether copies stand for some tensors.
  bool copied() const {
    return !copies_.empty() || !copyBack_.empty();
  }
  // Reports whether outputs wait to be written back.
  bool staged() const {
    return !copyBack_.empty();
  }
  // Takes over the copies of another operation on the same device, to keep them alive and write them back. The other
  // operation keeps its segments.
  void keep(Buffers& other);
  // Writes staged outputs to the user's tensors, in the order in which they were added, without autograd.
  void copyBack();

 private:
  void check(const char* op, const char* role, size_t index, const at::Tensor& t);
  void checkDevice(const char* op, const char* role, size_t index, const at::Tensor& t);
  void noteOutput(const at::Tensor& t);
  // For a collective: makes the current stream of a device come behind earlier ones of the group that write the tensor.
  void prepareCopy(const at::Tensor& t) const;
  // Refuses an output that is not a plain block and cannot be written back.
  static void checkWritable(const char* op, const char* role, size_t index, const at::Tensor& t);

  static constexpr uint8_t kNoType = 255;

  struct OnDevice {
    c10::Device device;
    std::vector<at::Tensor> tensors; // the user's
    std::vector<Footprint> outputs; // of those of `tensors` that a collective writes
  };

  Segments in_;
  Segments out_;
  Blocks inBlocks_;
  Blocks outBlocks_;
  uint8_t dtype_ = kNoType;
  const Devices* served_;
  bool collective_;
  std::unique_ptr<OnDevice> device_; // null: the tensors are on the CPU
  std::vector<at::Tensor> copies_; // inputs' copies, alive until the operation has finished
  std::vector<std::pair<at::Tensor, at::Tensor>> copyBack_; // {the user's output, its copy}
};

// Multiplies the input by a factor, one real number on its device, and writes the product to `to`, which may be the input. The product is
// the one that the core computes: the factor is rounded to the precision in which the type accumulates, and the product once to the type.
// Requires: the input is no lazy conjugate or negative.
void multiply(const at::Tensor& to, const at::Tensor& input, const at::Tensor& factor);

// Reports whether all elements lie inside the tensor's storage.
bool hasMemory(const at::Tensor& t);

// Reports whether two tensors may have memory in common. It is exact for views such as columns of one tensor; otherwise it
// may report true for tensors that only interleave.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// Reports whether two tensors are the same elements of the same memory, in the same order.
bool sameMemory(const at::Tensor& a, const at::Tensor& b);

} // namespace sagecomm
