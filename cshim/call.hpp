// call.hpp describes one call of torch on its way to the core. The operations of ProcessGroupSagecomm fill a Call on the
// stack of the calling thread; run() and runAll() in issue.cpp hand it to the core.
#pragma once

#include <algorithm>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "compat.hpp"
#include "ephemeral_timeout.hpp"
#include "sagecomm.h"
#include "tensors.hpp"
#include "work.hpp"

namespace sagecomm {

// A Call refers to the caller's tensors. They outlive the call, but not an operation that goes on after it.
struct Call {
  explicit Call(const OpInfo& opInfo) : info(opInfo) {
  }
  // `served` are the devices of the group.
  Call(const OpInfo& opInfo, sagecomm_kind kind, const Devices& served)
      : info(opInfo), buffers(&served, kind < SAGECOMM_SEND) {
    op.kind = static_cast<uint8_t>(kind);
  }

  // Reads what torch's options of all operations have in common.
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
  EphemeralTimeout::Share ephemeralShare; // what the ephemeral timeout adds to `timeout`
  int source = -1; // the peer of a receive
  bool internal = false; // no user gets the Work of this call, so hooks do not run for it
  bool repeatsTensor = false; // an earlier operation of the same coalesced call has the same tensor, see coalesced.cpp
  // The completion key of the Work that stands for this call in a coalescing window; 0 unless hooks listen.
  uint64_t key = 0;

  // Names the member that the core gets: `op`, `coalesced` or `sparse`. One test of it tells the usual form from the others.
  enum class Form : uint8_t { kOne, kCoalesced, kSparse };
  Form form = Form::kOne;
  // The caller of run() owns it until the core has accepted the operation; then the Work owns it.
  std::unique_ptr<SparseSum>* sparse = nullptr;
  // The segments of these operations lie in the Calls that described them.
  std::vector<sagecomm_op> coalesced;
  std::vector<uint64_t> memberKeys; // the `key` of each of these Calls that has one

  // Whether the call takes a place among the collectives of the group, which p2p operations do not.
  bool collective() const {
    const auto numbered = [](const sagecomm_op& o) { return o.kind < SAGECOMM_SEND; };
    return coalesced.empty() ? numbered(op) : std::any_of(coalesced.begin(), coalesced.end(), numbered);
  }
  // Completes `op` from the other members. The device's part of `op` is DeviceWork's.
  void describe();
};

} // namespace sagecomm
