// What kernels do: each publishes what peers need, waits for what it needs of them, and computes. It waits inside of its stream
// as NCCL's kernels do: for ever if a peer does not come, or comes with another operation.
//
// A kernel of a graph gets its number each time when it begins. So the launches of the ranks meet in the order in which
// they run, whichever graphs they are of.
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
  Lane lane;
  uint64_t
      number;  // of all ranks' operations, or of this pair's sends or recvs; 0: a kernel of a graph that never began
  size_t in, out;  // bytes
  Signature signature() const {
    return {static_cast<int32_t>(what.kind), what.type, what.reduction.op, what.root, what.count};
  }
};
using Steps = std::shared_ptr<std::vector<Step>>;

Step step_of(const State &state, const Operation &what, Lane lane) {
  Step step{what, lane, 0, 0, 0};
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
      step.in = bytes;
      break;
    case Kind::recv:
      step.out = bytes;
      break;
  }
  return step;
}

void give_number(Numbers &newest, Step &step) {
  const Kind kind = step.what.kind;
  uint64_t &number = kind == Kind::send   ? newest.sends[step.what.root]
                     : kind == Kind::recv ? newest.recvs[step.what.root]
                                          : newest.all;
  step.number = ++number;
}

// Gives back the memory of data that nobody reads any more.
void clean(State &state) {
  uint64_t done[lanes] = {UINT64_MAX, UINT64_MAX};
  for (Lane lane : {called, launched})
    for (int i = 0; i < state.ranks; i++) done[lane] = std::min(done[lane], state.table->member[i].done[lane].load());
  std::erase_if(state.places, [&](const State::Place &place) {
    if ((place.taken != nullptr ? place.taken->load() : done[place.lane]) < place.number) return false;
    state.own->give_back(place.offset, place.bytes);
    return true;
  });
}

bool room(const State &state, const Step &step) {
  if (step.what.kind == Kind::recv) return true;
  if (step.what.kind == Kind::send)
    return step.number <= state.table->pair[step.lane][state.rank][step.what.root].taken.load() + window;
  for (int i = 0; i < state.ranks; i++)
    if (step.number > state.table->member[i].done[step.lane].load() + window) return false;
  return true;
}

void publish(State &state, const Step &step) {
  if (step.what.kind == Kind::recv) return;
  std::lock_guard lock(state.data_mutex);
  clean(state);
  const uint64_t at = state.own->place(step.in);
  if (step.in > 0) memcpy(state.own->at(at), host_view(step.what.from), step.in);
  if (step.what.kind == Kind::send) {
    Pair &pair = state.table->pair[step.lane][state.rank][step.what.root];
    pair.entry[step.number % window] = {at, step.in};
    state.places.push_back({&pair.taken, step.lane, step.number, at, step.in});
    pair.sent.store(step.number);
    return;
  }
  Entry &entry = state.me().entry[step.lane][step.number % window];
  entry.what = step.signature();
  entry.offset = at;
  entry.bytes = step.in;
  state.places.push_back({nullptr, step.lane, step.number, at, step.in});
  entry.number.store(step.number);
}

bool arrived(const State &state, const Step &step) {
  if (step.what.kind == Kind::send) return true;
  if (step.what.kind == Kind::recv) {
    const Pair &pair = state.table->pair[step.lane][step.what.root][state.rank];
    return pair.sent.load() >= step.number && pair.entry[step.number % window].bytes == step.out;
  }
  for (int i = 0; i < state.ranks; i++) {
    const Entry &entry = state.table->member[i].entry[step.lane][step.number % window];
    if (entry.number.load() != step.number || !(entry.what == step.signature())) return false;
  }
  return true;
}

bool taken(const State &state, const Step &step) {
  return step.what.kind != Kind::send ||
         state.table->pair[step.lane][state.rank][step.what.root].taken.load() >= step.number;
}

void compute(State &state, const Step &step) {
  auto data_of = [&](int rank) -> Data & {
    return rank == state.rank ? *state.own : *state.data[static_cast<size_t>(rank)];
  };
  char *to = step.out > 0 ? static_cast<char *>(host_view(step.what.to)) : nullptr;
  if (step.what.kind == Kind::send) return;
  if (step.what.kind == Kind::recv) {
    Pair &pair = state.table->pair[step.lane][step.what.root][state.rank];
    memcpy(to, data_of(step.what.root).at(pair.entry[step.number % window].offset), step.out);
    pair.taken.store(step.number);
    return;
  }
  std::vector<const char *> inputs;
  for (int i = 0; i < state.ranks; i++)
    inputs.push_back(data_of(i).at(state.table->member[i].entry[step.lane][step.number % window].offset));
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
  state.me().done[step.lane].store(step.number);
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

// Makes what begins a kernel of a graph. A graph has it until it is destroyed.
std::function<void()> beginning(const StatePointer &state, const Steps &steps) {
  state->graphs++;
  const std::shared_ptr<void> held(nullptr, [state](void *) { state->graphs--; });
  return [state, steps, held] {
    std::lock_guard lock(state->data_mutex);
    for (Step &step : *steps) give_number(state->launched, step);
  };
}

}  // namespace

bool captured(emulator::StreamHandle stream) {
  auto status = emulator::CaptureStatus::none;
  uint64_t number = 0;
  return emulator::capture_status(stream, &status, &number) == emulator::Status::success &&
         status != emulator::CaptureStatus::none;
}

ncclResult_t launch(const StatePointer &state, std::vector<Operation> operations) {
  std::map<emulator::StreamHandle, Steps> streams;
  for (const Operation &operation : operations) {
    if (operation.count == 0) continue;
    Steps &steps = streams[operation.stream];
    if (steps == nullptr) steps = std::make_shared<std::vector<Step>>();
    steps->push_back(step_of(*state, operation, captured(operation.stream) ? launched : called));
    if (steps->back().lane == called) give_number(state->called, steps->back());
  }
  for (const auto &[stream, steps] : streams) {
    std::vector<Range> reads, writes;
    std::string what = "nccl kernel";
    if (steps->front().lane == launched && emulator::launch(stream, "begin of an nccl kernel", {}, {},
                                                            beginning(state, steps)) != emulator::Status::success)
      return fail(ncclUnhandledCudaError, "Cuda failure 'operation failed due to a previous error during capture'");
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
