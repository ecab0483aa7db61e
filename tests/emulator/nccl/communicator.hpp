// communicator.hpp has communicators, and the operations that their kernels carry out.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../core/runtime.hpp"
#include "table.hpp"
#include "reduce.hpp"

namespace fake_nccl {

enum class Kind : int32_t { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };

// One call of a function that moves data.
struct Operation {
  Kind kind;
  const void *from;
  void *to;
  size_t count;  // as NCCL counts it: elements of the shorter buffer
  ncclDataType_t type;
  Reduction reduction;
  int root;  // or the peer
  emulator::StreamHandle stream;
};

// Numbers of operations: of those of all ranks, and of the sends and recvs of each pair.
struct Numbers {
  uint64_t all = 0, sends[most_ranks] = {}, recvs[most_ranks] = {};
};

// What kernels use. They may outlive the handle.
struct State {
  int rank = 0, ranks = 0;
  bool blocking = true;
  Table *table = nullptr;
  std::unique_ptr<Data> own;
  std::vector<std::unique_ptr<Data>> data;  // of the peers; none at this rank's place
  int process[most_ranks];                  // descriptors of the peers' processes on other hosts, else -1
  int device = -1;
  std::atomic<bool> aborted{false};

  std::mutex mutex;  // guards what follows
  bool ready = false, finalizing = false;
  ncclResult_t error = ncclSuccess;  // the asynchronous one
  Numbers called;                    // the newest ones
  std::deque<Operation> waiting;     // the ranks are not connected for them, or nobody has asked for their state yet
  std::vector<Reduction> made;       // by number of the reduction, from ncclNumOps

  // Threads of the library, which queue the operations of calls that have returned an error when the end of the communicator has begun.
  std::vector<std::thread> late;
  std::atomic<int> queueing{0};  // of them
  std::atomic<bool> ends{false};

  std::atomic<int> graphs{0};  // operations of graphs that were not destroyed

  std::mutex data_mutex;  // taken by kernels; guards what follows and the places of `own`
  Numbers launched;       // the newest ones of graphs
  struct Place {
    std::atomic<uint64_t> *taken;  // of a send; null: of an operation of all ranks
    Lane lane;
    uint64_t number, offset, bytes;
  };
  std::deque<Place> places;  // of data that peers may still read

  State() { std::fill(std::begin(process), std::end(process), -1); }
  ~State();
  Member &me() const { return table->member[rank]; }
};
using StatePointer = std::shared_ptr<State>;

// Sets the text of ncclGetLastError() and returns the result.
ncclResult_t fail(ncclResult_t result, const std::string &why);

// Begins to join. The communicator is ready when all ranks have joined.
ncclResult_t join(const Address &address, int ranks, int rank, bool blocking, StatePointer *state);
// Looks whether all ranks have joined. Returns ncclInProgress until they have. Requires: the mutex.
ncclResult_t look(State &state);
// Looks whether a rank of another host has died, which ends the connections with it. Inside a host NCCL has memory instead, and
// does not notice. Returns ncclSuccess if none has. Requires: the mutex; the communicator is ready.
ncclResult_t look_for_deaths(State &state);
// Reports whether the users of all ranks of other hosts know that the connections with this one are gone.
bool all_told(const State &state);
// Begins to connect this rank with those that take part in operations.
void connect(const State &state, const std::vector<Operation> &operations);
// Reports whether this rank has begun to, in an earlier call.
bool connecting(const State &state, const std::vector<Operation> &operations);
// Reports whether they have begun to connect with this rank, too.
bool connected(const State &state, const std::deque<Operation> &operations);
// Leaves the other ranks, and reports whether all of them have left, which the end of a communicator waits for.
void leave(const State &state);
bool alone(const State &state);
// Returns the device that NCCL finds current on this thread: the runtime's, which is 0 if the thread has chosen none.
int current_device();
// Writes the identity of a device.
bool identify(int device, char *text, size_t size);
// Reports whether a stream is being captured.
bool captured(emulator::StreamHandle stream);
// Queues the operations of a group, or adds them to a capture: one kernel on each stream. Requires: the mutex.
ncclResult_t launch(const StatePointer &state, std::vector<Operation> operations);

}  // namespace fake_nccl
