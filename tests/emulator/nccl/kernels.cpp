// What kernels do: each publishes what peers need, waits for what it needs of them, and computes. It waits inside of its stream
// as NCCL's kernels do: for ever if a peer does not come, or comes with another operation.
#include <cstring>
#include <map>

#include "communicator.hpp"

namespace fake_nccl {
namespace {

using emulator::host_view;
using emulator::Range;

// An operation with its number and its buffers in bytes.
struct Step {
  Operation what;
  uint64_t number;  // of all ranks' operations, or of this pair's sends or recvs
  size_t in, out;   // bytes
  Signature signature() const {
    return {static_cast<int32_t>(what.kind), what.type, what.reduction.op, what.root, what.count};
  }
};
using Steps = std::shared_ptr<std::vector<Step>>;

bool is_p2p(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

Step step_of(State &state, const Operation &what) {
  Step step{what, 0, 0, 0};
  const size_t bytes = what.count * size_of(what.type), all = bytes * static_cast<size_t>(state.ranks);
  const bool root = what.root == state.rank;
  switch (what.kind) {
    case Kind::all_reduce:
      step.in = step.out = bytes;
      break;
    case Kind::reduce:
      step.in = bytes, step.out = root ? bytes : 0;
      break;
    case Kind::broadcast:
      step.in = root ? bytes : 0, step.out = bytes;
      break;
    case Kind::all_gather:
      step.in = bytes, step.out = all;
      break;
    case Kind::reduce_scatter:
      step.in = all, step.out = bytes;
      break;
    case Kind::send:
      step.in = bytes, step.number = ++state.sends[what.root];
      break;
    case Kind::recv:
      step.out = bytes, step.number = ++state.recvs[what.root];
      break;
  }
  if (!is_p2p(what.kind)) step.number = ++state.issued;
  return step;
}

// Gives back the memory of data that nobody reads any more.
void clean(State &state) {
  uint64_t done = UINT64_MAX;
  for (int i = 0; i < state.ranks; i++) done = std::min(done, state.table->member[i].done.load());
  std::erase_if(state.places, [&](const State::Place &place) {
    if ((place.taken != nullptr ? place.taken->load() : done) < place.number) return false;
    state.own->give_back(place.offset, place.bytes);
    return true;
  });
}

bool room(const State &state, const Step &step) {
  if (step.what.kind == Kind::recv) return true;
  if (step.what.kind == Kind::send)
    return step.number <= state.table->pair[state.rank][step.what.root].taken.load() + window;
  for (int i = 0; i < state.ranks; i++)
    if (step.number > state.table->member[i].done.load() + window) return false;
  return true;
}

void publish(State &state, const Step &step) {
  if (step.what.kind == Kind::recv) return;
  std::lock_guard lock(state.data_mutex);
  clean(state);
  const uint64_t at = state.own->place(step.in);
  if (step.in > 0) memcpy(state.own->at(at), host_view(step.what.from), step.in);
  if (step.what.kind == Kind::send) {
    Pair &pair = state.table->pair[state.rank][step.what.root];
    pair.entry[step.number % window] = {at, step.in};
    state.places.push_back({&pair.taken, step.number, at, step.in});
    pair.sent.store(step.number);
    return;
  }
  Entry &entry = state.me().entry[step.number % window];
  entry.what = step.signature();
  entry.offset = at;
  entry.bytes = step.in;
  state.places.push_back({nullptr, step.number, at, step.in});
  entry.number.store(step.number);
}

bool arrived(const State &state, const Step &step) {
  if (step.what.kind == Kind::send) return true;
  if (step.what.kind == Kind::recv) {
    const Pair &pair = state.table->pair[step.what.root][state.rank];
    return pair.sent.load() >= step.number && pair.entry[step.number % window].bytes == step.out;
  }
  for (int i = 0; i < state.ranks; i++) {
    const Entry &entry = state.table->member[i].entry[step.number % window];
    if (entry.number.load() != step.number || !(entry.what == step.signature())) return false;
  }
  return true;
}

bool taken(const State &state, const Step &step) {
  return step.what.kind != Kind::send || state.table->pair[state.rank][step.what.root].taken.load() >= step.number;
}

void compute(State &state, const Step &step) {
  auto data_of = [&](int rank) -> Data & {
    return rank == state.rank ? *state.own : *state.data[static_cast<size_t>(rank)];
  };
  char *to = step.out > 0 ? static_cast<char *>(host_view(step.what.to)) : nullptr;
  if (step.what.kind == Kind::send) return;
  if (step.what.kind == Kind::recv) {
    Pair &pair = state.table->pair[step.what.root][state.rank];
    memcpy(to, data_of(step.what.root).at(pair.entry[step.number % window].offset), step.out);
    pair.taken.store(step.number);
    return;
  }
  std::vector<const char *> inputs;
  for (int i = 0; i < state.ranks; i++)
    inputs.push_back(data_of(i).at(state.table->member[i].entry[step.number % window].offset));
  switch (step.what.kind) {
    case Kind::broadcast:
      memcpy(to, inputs[static_cast<size_t>(step.what.root)], step.out);
      break;
    case Kind::all_gather:
      for (size_t i = 0; i < inputs.size(); i++) memcpy(to + i * step.in, inputs[i], step.in);
      break;
    case Kind::reduce_scatter:
      for (const char *&input : inputs) input += step.out * static_cast<size_t>(state.rank);
      [[fallthrough]];
    default:
      if (step.out > 0) reduce(inputs, to, step.what.count, step.what.type, step.what.reduction);
  }
  state.me().done.store(step.number);
}

// Makes a function that holds if all steps do, or if the communicator was aborted.
std::function<bool()> once(const StatePointer &state, const Steps &steps, bool (*holds)(const State &, const Step &)) {
  return [state, steps, holds] {
    if (state->aborted) return true;
    return std::all_of(steps->begin(), steps->end(), [&](const Step &step) { return holds(*state, step); });
  };
}

std::function<void()> each(const StatePointer &state, const Steps &steps, void (*act)(State &, const Step &)) {
  return [state, steps, act] {
    for (const Step &step : *steps)
      if (!state->aborted) act(*state, step);
  };
}

const char *name(Kind kind) {
  static const char *const names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"};
  return names[static_cast<int>(kind)];
}

}  // namespace

ncclResult_t launch(const StatePointer &state, std::vector<Operation> operations) {
  std::map<emulator::StreamHandle, Steps> streams;
  for (const Operation &operation : operations) {
    if (operation.count == 0) continue;
    Steps &steps = streams[operation.stream];
    if (steps == nullptr) steps = std::make_shared<std::vector<Step>>();
    steps->push_back(step_of(*state, operation));
  }
  for (const auto &[stream, steps] : streams) {
    std::vector<Range> reads, writes;
    std::string what = "nccl kernel";
    for (const Step &step : *steps) {
      what += std::string(" ") + name(step.what.kind);
      if (step.in > 0) reads.push_back({step.what.from, step.in});
      if (step.out > 0) writes.push_back({step.what.to, step.out});
    }
    // A kernel may read and write its buffers at any time until it ends.
    for (auto [ready, run] : {std::pair{once(state, steps, room), each(state, steps, publish)},
                              std::pair{once(state, steps, arrived), each(state, steps, compute)},
                              std::pair{once(state, steps, taken), std::function<void()>([] {})}})
      if (emulator::launch_when(ready, stream, what, reads, writes, run) != emulator::Status::success)
        return fail(ncclUnhandledCudaError, "Cuda failure 'invalid argument'");
  }
  return ncclSuccess;
}

}  // namespace fake_nccl
