// group.hpp has communicators for libraries whose functions wait for peers: a join for all ranks, and the first call of a kind for the
// ranks that it connects. Ranks, kernels and reductions are those of ../nccl.
#pragma once

#include <optional>

#include "../core/late.hpp"
#include "../nccl/communicator.hpp"

namespace blocking {

using fake_nccl::Kind;
using fake_nccl::Operation;
using fake_nccl::StatePointer;

// Returns when all ranks have joined. Requires: a device is current.
ncclResult_t join(const fake_nccl::Address &address, int ranks, int rank, StatePointer *state);
// Queues operations, after their ranks have connected. A late call goes on in an abort, too.
ncclResult_t issue(const StatePointer &state, const std::vector<Operation> &operations,
                   const std::optional<emulator::Late> &late = std::nullopt);
// Waits for the kernels of a communicator.
ncclResult_t finish(const StatePointer &state);

inline Operation operation(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, int op, int root,
                           void *stream) {
  return {kind, from,
          to,   count,
          type, {static_cast<ncclRedOp_t>(op), 1},
          root, static_cast<emulator::StreamHandle>(stream)};
}

}  // namespace blocking
