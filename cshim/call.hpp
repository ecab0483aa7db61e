// call.hpp: one call on its way to the core.
#pragma once

#include <algorithm>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "compat.hpp"
#include "ephemeral.hpp"
#include "sagecomm.h"
#include "tensors.hpp"
#include "work.hpp"

namespace sagecomm {

// Tensors are the caller's; they outlive the call, not the operation.
struct Call {
  explicit Call(const OpInfo& opInfo) : info(opInfo) {
  }
  Call(const OpInfo& opInfo, sagecomm_kind kind) : info(opInfo) {
    op.kind = static_cast<uint8_t>(kind);
  }

  template <class O>
  void take(const O& opts) {
    async = wantsAsync(opts);
    timeout = opts.timeout;
  }

  const OpInfo& info;
  sagecomm_op op{};
  Buffers buffers;
  c10::ArrayRef<at::Tensor> inputs;
  c10::ArrayRef<at::Tensor> outputs;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  EphemeralTimeout::Share ephemeral; // of its timeout
  int source = -1; // of a receive
  bool inside = false; // nobody is given its Work
  uint64_t key = 0; // in a coalescing window while hooks listen: the completion key of the Work that stands for it
  // Of a coalesced call: its operations, instead of `op`. Their segments are where they were added.
  c10::ArrayRef<sagecomm_op> parts;
  std::vector<uint64_t> partKeys; // the `key` of each that has one

  bool collective() const {
    const auto moves = [](const sagecomm_op& o) { return o.kind < SAGECOMM_SEND; };
    return parts.empty() ? moves(op) : std::any_of(parts.begin(), parts.end(), moves);
  }
  // Completes `op`.
  void describe();
};

} // namespace sagecomm
