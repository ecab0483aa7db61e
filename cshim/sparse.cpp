#include "sparse.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue_inl.h>
#include <c10/util/hash.h>

#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

constexpr const char* kOp = "all_reduce";

// What a rank says about its tensor. All but the number of elements must be the same everywhere.
struct Header {
  int64_t elements;
  int64_t sparseDims;
  int64_t type;
  int64_t sizes; // a hash

  bool agrees(const Header& other) const {
    return sparseDims == other.sparseDims && type == other.type && sizes == other.sizes;
  }
};

enum Part : uint32_t { kHeader, kIndices, kValues, kParts };

// Negative: users' tags are not. Calls use different ones, because receipts of a later call may be posted first.
int32_t tagOf(uint32_t number, Part part) {
  constexpr uint32_t kNumbers = (1U << 30) / kParts;
  return -1 - static_cast<int32_t>(number % kNumbers * kParts + part);
}

class SparseWork final : public c10d::Work {
 public:
  SparseWork(const SparseGroup& group, uint32_t number, const at::Tensor& tensor, milliseconds timeout)
      : c10d::Work(group.rank, c10d::OpType::ALLREDUCE),
        group_(group),
        number_(number),
        timeout_(timeout),
        output_(tensor),
        headers_(group.size),
        indices_(group.size),
        values_(group.size) {
    at::AutoDispatchBelowADInplaceOrView noAutograd;
    try { // torch does not look by itself
      at::_validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.sizes());
    } catch (const c10::Error& e) {
      refuse(kOp, e.what_without_backtrace());
    }
    const at::Tensor mine = tensor.is_coalesced() ? tensor : tensor.coalesce();
    indices_[group.rank] = mine._indices().contiguous();
    values_[group.rank] = mine._values().contiguous();
    headers_[group.rank] = {
        mine._nnz(),
        mine.sparse_dim(),
        static_cast<int64_t>(mine.scalar_type()),
        static_cast<int64_t>(c10::get_hash(tensor.sizes().vec()))};
  }

  // Posts what can be posted.
  void start() {
    const int rank = group_.rank;
    for (int i = 1; i < group_.size; i++) {
      const int peer = (rank + i) % group_.size;
      post(SAGECOMM_RECV, kHeader, peer, &headers_[peer], sizeof(Header));
      post(SAGECOMM_SEND, kHeader, peer, &headers_[rank], sizeof(Header));
      if (headers_[rank].elements > 0) {
        post(SAGECOMM_SEND, kIndices, peer, indices_[rank].data_ptr(), indices_[rank].nbytes());
        post(SAGECOMM_SEND, kValues, peer, values_[rank].data_ptr(), values_[rank].nbytes());
      }
    }
    through();
  }

  bool isCompleted() override {
    return done_.load(std::memory_order_acquire);
  }
  bool isSuccess() const override {
    return done_.load(std::memory_order_acquire) && error_ == nullptr;
  }
  std::exception_ptr exception() const override {
    return done_.load(std::memory_order_acquire) && error_ != nullptr ? toException(*error_) : nullptr;
  }
  std::vector<at::Tensor> result() override {
    return {output_};
  }
  void synchronize() override {
  }

  bool wait(milliseconds timeout = kNoTimeout) override {
    refuseInChild();
    WithoutGil unlocked;
    const auto begun = std::chrono::steady_clock::now();
    while (!isCompleted()) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, std::chrono::nanoseconds(kSliceNs), [this] { return isCompleted(); });
      }
      checkSignals();
      if (timeout > kNoTimeout && !isCompleted() && std::chrono::steady_clock::now() - begun >= timeout) {
        TORCH_CHECK(
            false,
            "Operation timed out! sagecomm: all_reduce: not complete ",
            timeout.count(),
            " ms after wait(timeout=...) began; the operation goes on, wait() can be called again");
      }
    }
    if (error_) {
      raise(*error_);
    }
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return futureIn(future_, c10::ListType::create(c10::TensorType::get()), [this](auto& f) { finishFuture(f); });
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return futureIn(futureResult_, c10::AnyEnumType::get(), [this](auto& f) { finishResult(f); });
  }

  // Of the sparse sums of the group, from 1: they are no collectives of the core's.
  uint64_t getSequencenumber() const override {
    return uint64_t{number_} + 1;
  }

 private:
  // Nothing completes it there, and another thread may have held the lock.
  void refuseInChild() const {
    if (!forked()) {
      return;
    }
    sagecomm_error error;
    fillError(
        error,
        SAGECOMM_FORKED,
        kOp,
        group_.info->name,
        "this process was forked from the one that began it, where it goes on; wait for it there");
    raise(error);
  }

  // One message on its way. It keeps the work, and so the memory that it reads or writes.
  struct Message {
    c10::intrusive_ptr<SparseWork> work;
    sagecomm_kind kind;
    Part part;
    int peer;
    sagecomm_work handle = 0;
  };

  void post(sagecomm_kind kind, Part part, int peer, void* data, size_t bytes) {
    if (failed_.load()) {
      return;
    }
    sagecomm_segment segment{data, bytes};
    sagecomm_op op{};
    op.kind = static_cast<uint8_t>(kind);
    op.dtype = SAGECOMM_UINT8;
    op.flags = SAGECOMM_ASYNC;
    op.root = peer;
    op.tag = tagOf(number_, part);
    op.timeout_ns = timeout_ > kNoTimeout ? toNs(timeout_) : 0;
    (kind == SAGECOMM_SEND ? op.in : op.out) = &segment;
    (kind == SAGECOMM_SEND ? op.n_in : op.n_out) = 1;
    auto message = std::make_unique<Message>(
        Message{c10::intrusive_ptr<SparseWork>::unsafe_reclaim_from_nonowning(this), kind, part, peer});
    left_.fetch_add(1);
    sagecomm_error error;
    int32_t status = core().issue(group_.group, &op, &message->handle, &error);
    if (status == SAGECOMM_PENDING) {
      Message* ctx = message.release();
      status = core().on_done(ctx->handle, &SparseWork::messageDone, ctx, &error);
      if (status == SAGECOMM_PENDING) {
        return;
      }
      message.reset(ctx);
    }
    settle(std::move(message), status, error);
  }

  static void messageDone(void* ctx, int32_t status, const sagecomm_error* error) noexcept {
    CompletionGate gate;
    if (!gate.open()) {
      return; // the process is ending: the memory stays until it has
    }
    std::unique_ptr<Message> message(static_cast<Message*>(ctx));
    SparseWork& work = *message->work;
    work.settle(std::move(message), status, *error);
  }

  void settle(std::unique_ptr<Message> message, int32_t status, const sagecomm_error& error) {
    if (status < 0) {
      fail(error);
    } else if (message->kind == SAGECOMM_RECV && message->part == kHeader) {
      headerHasCome(message->peer);
    }
    if (message->handle != 0) {
      core().release(message->handle);
    }
    through();
  }

  void headerHasCome(int peer) {
    const Header& theirs = headers_[peer];
    const Header& mine = headers_[group_.rank];
    if (!theirs.agrees(mine) || theirs.elements < 0) {
      disagree(peer);
      return;
    }
    if (theirs.elements == 0) {
      return;
    }
    try {
      indices_[peer] = at::empty({mine.sparseDims, theirs.elements}, at::kLong);
      std::vector<int64_t> shape = values_[group_.rank].sizes().vec();
      shape[0] = theirs.elements;
      values_[peer] = at::empty(shape, values_[group_.rank].options());
    } catch (const std::exception& e) {
      giveUp(SAGECOMM_SYSTEM, group_.rank, me() + " has no memory for what came: " + reasonOf(e));
      return;
    }
    post(SAGECOMM_RECV, kIndices, peer, indices_[peer].data_ptr(), indices_[peer].nbytes());
    post(SAGECOMM_RECV, kValues, peer, values_[peer].data_ptr(), values_[peer].nbytes());
  }

  void disagree(int peer) {
    giveUp(
        SAGECOMM_MISMATCH,
        peer,
        "ranks " + std::to_string(group_.rank) + " and " + std::to_string(peer) +
            " gave sparse tensors of different shape, type or number of sparse dimensions; every rank must give the "
            "same");
  }

  std::string me() const {
    return "rank " + std::to_string(group_.rank);
  }

  static std::string reasonOf(const std::exception& e) {
    const auto* ours = dynamic_cast<const c10::Error*>(&e);
    return ours != nullptr ? ours->what_without_backtrace() : e.what();
  }

  // The other ranks, and the messages that are still on their way, end with the group, for the same reason: this one's,
  // or that of a rank that was faster.
  void giveUp(int status, int blamed, const std::string& why) {
    sagecomm_error error;
    fillError(error, status, kOp, group_.info->name, why);
    error.rank = blamed;
    sagecomm_error first;
    if (core().group_fail(group_.group, &error, nullptr) == SAGECOMM_OK &&
        core().group_error(group_.group, &first) < 0) {
      error = first;
    }
    fail(error);
  }

  void fail(const sagecomm_error& error) {
    if (!failed_.exchange(true)) {
      error_ = std::make_unique<sagecomm_error>(error);
    }
  }

  // A message, or start(), is through; the last one finishes.
  void through() {
    if (left_.fetch_sub(1) != 1) {
      return;
    }
    if (!failed_.load()) {
      try {
        add();
      } catch (const std::exception& e) {
        giveUp(SAGECOMM_SYSTEM, group_.rank, me() + " cannot add what came: " + reasonOf(e));
      }
    }
    c10::intrusive_ptr<c10::ivalue::Future> future;
    c10::intrusive_ptr<c10::ivalue::Future> futureResult;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_.store(true, std::memory_order_release);
      future = future_;
      futureResult = futureResult_;
    }
    changed_.notify_all();
    try {
      if (future) {
        finishFuture(*future);
      }
      if (futureResult) {
        finishResult(*futureResult);
      }
    } catch (const std::exception& e) {
      LOG(ERROR) << "sagecomm: all_reduce: a callback of this operation's Future raised: " << e.what();
    }
  }

  void add() {
    at::AutoDispatchBelowADInplaceOrView noAutograd;
    std::vector<at::Tensor> indices;
    std::vector<at::Tensor> values;
    for (int r = 0; r < group_.size; r++) {
      if (headers_[r].elements > 0) {
        at::_validate_sparse_coo_tensor_args(indices_[r], values_[r], output_.sizes()); // other processes wrote them
        indices.push_back(indices_[r]);
        values.push_back(values_[r]);
      }
    }
    if (indices.empty()) {
      indices.push_back(indices_[group_.rank]);
      values.push_back(values_[group_.rank]);
    }
    const at::Tensor sum =
        at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), output_.sizes(), output_.options()).coalesce();
    output_.copy_(sum);
    indices_.clear();
    values_.clear();
  }

  void finishFuture(c10::ivalue::Future& future) const {
    if (error_) {
      future.setError(toException(*error_));
    } else {
      future.markCompleted(c10::IValue(std::vector<at::Tensor>{output_}));
    }
  }

  void finishResult(c10::ivalue::Future& future) const {
    future.markCompleted(c10::IValue(static_cast<int64_t>(resultOf(error_.get()))));
  }

  // Completed by through(), or here if it is through; outside the lock, since callbacks run.
  template <class Finish>
  c10::intrusive_ptr<c10::ivalue::Future> futureIn(
      c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish) {
    refuseInChild();
    auto future = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (place) {
        return place;
      }
      place = future;
      if (!isCompleted()) {
        return future;
      }
    }
    finish(*future);
    return future;
  }

  const SparseGroup group_;
  const uint32_t number_;
  const milliseconds timeout_;
  at::Tensor output_;
  // By rank; one is written by the message that comes, before it is through.
  std::vector<Header> headers_;
  std::vector<at::Tensor> indices_;
  std::vector<at::Tensor> values_;

  std::atomic<int> left_{1}; // messages, and start()
  std::atomic<bool> failed_{false};
  std::unique_ptr<sagecomm_error> error_; // written by who set failed_, read once done_
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> futureResult_;
};

} // namespace

c10::intrusive_ptr<c10d::Work> allReduceSparse(
    const SparseGroup& group, uint32_t number, const at::Tensor& tensor, milliseconds timeout) {
  auto work = c10::make_intrusive<SparseWork>(group, number, tensor, timeout);
  work->start();
  return work;
}

} // namespace sagecomm
