// How the ranks of a communicator meet.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "communicator.hpp"

namespace fake_nccl {
namespace {

ncclResult_t give_up(State &state, ncclResult_t result, const std::string &why) {
  state.me().presence.store(Presence::failed);
  state.error = result;
  return fail(result, why);
}

// Reports whether a rank is on the host of this one.
bool is_near(const State &state, int rank) {
  const std::string mine = state.me().device, its = state.table->member[rank].device;
  return mine.substr(0, mine.find('/')) == its.substr(0, its.find('/'));
}

bool has_ended(int process) {
  pollfd ended = {process, POLLIN, 0};
  return process >= 0 && poll(&ended, 1, 0) > 0;
}

}  // namespace

State::~State() {
  for (const int descriptor : process)
    if (descriptor >= 0) close(descriptor);
  if (table == nullptr) return;
  const Member *first = table->member;
  if (std::none_of(first, first + ranks, [](const Member &m) { return m.presence.load() == Presence::absent; }))
    forget_table(table->nonce);  // nobody opens it any more
  close_table(table);
}

bool all_told(const State &state) {
  for (int i = 0; i < state.ranks; i++)
    if (!is_near(state, i) && (state.me().told & 1U << i) == 0) return false;
  return true;
}

ncclResult_t look_for_deaths(State &state) {
  for (int i = 0; i < state.ranks; i++) {
    Member &peer = state.table->member[i];
    if (i == state.rank || is_near(state, i)) continue;
    int32_t broken = peer.broken.load();
    if (broken == ncclSuccess && has_ended(state.process[i]) && peer.presence.load() == Presence::joined)
      broken = ncclRemoteError;
    if (broken == ncclSuccess) continue;
    state.error = static_cast<ncclResult_t>(broken);
    peer.told |= 1U << state.rank;
    return fail(state.error, "socketProgress: Connection closed by remote peer");
  }
  return ncclSuccess;
}

void connect(const State &state, const std::vector<Operation> &operations) {
  for (const Operation &one : operations) {
    if (one.kind == Kind::send)
      state.me().sends |= 1U << one.root;
    else if (one.kind == Kind::recv)
      state.me().recvs |= 1U << one.root;
    else
      state.me().kinds |= 1U << static_cast<int>(one.kind);
  }
}

bool connecting(const State &state, const std::vector<Operation> &operations) {
  const Member &me = state.me();
  return std::all_of(operations.begin(), operations.end(), [&](const Operation &one) {
    if (one.kind == Kind::send) return (me.sends & 1U << one.root) != 0;
    if (one.kind == Kind::recv) return (me.recvs & 1U << one.root) != 0;
    return (me.kinds & 1U << static_cast<int>(one.kind)) != 0;
  });
}

bool connected(const State &state, const std::deque<Operation> &operations) {
  const uint32_t me = 1U << state.rank;
  for (const Operation &one : operations) {
    const Member &peer = state.table->member[one.root];
    if (one.kind == Kind::send && (peer.recvs & me) == 0) return false;
    if (one.kind == Kind::recv && (peer.sends & me) == 0) return false;
    if (one.kind == Kind::send || one.kind == Kind::recv) continue;
    for (int i = 0; i < state.ranks; i++)
      if ((state.table->member[i].kinds & 1U << static_cast<int>(one.kind)) == 0) return false;
  }
  return true;
}

void leave(const State &state) { state.me().presence.store(Presence::left); }

bool alone(const State &state) {
  for (int i = 0; i < state.ranks; i++)
    if (state.table->member[i].presence.load() == Presence::joined) return false;
  return true;
}

ncclResult_t join(const Address &address, int ranks, int rank, bool blocking, StatePointer *made) {
  if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks)
    return fail(ncclInvalidArgument, "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(ranks));
  auto state = std::make_shared<State>();
  state->table = open_table(address);
  if (state->table == nullptr)
    return fail(ncclSystemError, "socketPollConnect: connect returned Connection refused, exceeded error retry count");
  state->rank = rank;
  state->ranks = ranks;
  state->blocking = blocking;
  state->own = Data::make();
  Member &me = state->me();
  if (state->own == nullptr) return fail(ncclSystemError, "cannot make memory to share");
  if (me.presence.load() != Presence::absent) return fail(ncclInvalidUsage, "rank joined twice");
  state->device = current_device();
  if (!identify(state->device, me.device, sizeof me.device))
    return fail(ncclUnhandledCudaError, "Cuda failure 'invalid device context'");
  me.ranks = ranks;
  me.process = getpid();
  me.data = state->own->descriptor();
  me.presence.store(Presence::joined);
  *made = state;
  return ncclSuccess;
}

ncclResult_t look(State &state) {
  if (state.ready || state.error != ncclSuccess) return state.error;
  Table &table = *state.table;
  for (int i = 0; i < state.ranks; i++) {
    if (table.member[i].presence.load() == Presence::absent) return ncclInProgress;
    if (table.member[i].ranks != state.ranks)
      return give_up(state, ncclInvalidUsage, "Bootstrap Root : mismatch in rank count from procs");
  }
  for (int i = 0; i < state.ranks; i++)
    for (int j = 0; j < i; j++)
      if (strcmp(table.member[i].device, table.member[j].device) == 0)
        return give_up(state, ncclInvalidUsage,
                       "Duplicate GPU detected : rank " + std::to_string(j) + " and rank " + std::to_string(i) +
                           " both on CUDA device " + table.member[i].device);
  for (int i = 0; i < state.ranks; i++)
    if (table.member[i].presence.load() == Presence::failed)
      return give_up(state, ncclRemoteError, "socketProgress: Connection closed by remote peer");
  state.data.resize(static_cast<size_t>(state.ranks));
  for (int i = 0; i < state.ranks; i++) {
    if (i == state.rank) continue;
    auto &data = state.data[static_cast<size_t>(i)];
    data = Data::open(table.member[i].process, table.member[i].data);
    if (data == nullptr) return give_up(state, ncclRemoteError, "socketProgress: Connection closed by remote peer");
    if (!is_near(state, i)) state.process[i] = static_cast<int>(syscall(SYS_pidfd_open, table.member[i].process, 0));
  }
  state.ready = true;
  return ncclSuccess;
}

}  // namespace fake_nccl
