#include "sparse.hpp"

#include <algorithm>
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
#include "sparse_sum.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

constexpr const char* kOp = "all_reduce";

enum Part : uint32_t { kIndices, kValues, kParts };

// Negative: users' tags are not. Calls use different ones, because receipts of a later call may be posted first.
int32_t tagOf(int64_t number, Part part) {
  constexpr uint32_t kNumbers = (1U << 30) / kParts;
  return -1 - static_cast<int32_t>(static_cast<uint64_t>(number) % kNumbers * kParts + part);
}

class SparseWork final : public c10d::Work {
 public:
  SparseWork(
      const SparseGroup& group,
      int64_t number,
      const at::Tensor& tensor,
      milliseconds timeout,
      EphemeralTimeout::Share&& ephemeral)
      : c10d::Work(group.rank, c10d::OpType::ALLREDUCE),
        group_(group),
        timeout_(timeout),
        ephemeral_(std::move(ephemeral)),
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
    SparseElements mine{tensor._indices().contiguous(), tensor._values().contiguous()};
    if (!tensor.is_coalesced() && mine.indices.size(1) > 0 && isExact(tensor.scalar_type())) {
      mine = summed(mine, tensor.sizes());
    }
    indices_[group.rank] = mine.indices;
    values_[group.rank] = mine.values;
    mine_.number = number;
    mine_.elements = mine.indices.size(1);
    mine_.sparseDims = tensor.sparse_dim();
    mine_.type = static_cast<int64_t>(tensor.scalar_type());
    mine_.dims = tensor.dim();
    std::copy_n(tensor.sizes().begin(), std::min(mine_.sizes.size(), tensor.sizes().size()), mine_.sizes.begin());
    mine_.hash = static_cast<int64_t>(c10::get_hash(tensor.sizes().vec()));
  }

  // Issues the collective that begins it.
  void start() {
    core().group_hold(group_.group, 1, nullptr);
    group_.info->hooks->began();
    watch_ = group_.info->hooks->start();
    sagecomm_segment in{&mine_, sizeof mine_};
    sagecomm_segment out{headers_.data(), headers_.size() * sizeof(SparseHeader)};
    sagecomm_op op{};
    op.kind = SAGECOMM_ALL_GATHER;
    op.dtype = SAGECOMM_SPARSE;
    op.in = &in;
    op.out = &out;
    const bool issued = issue(op, true);
    through();
    if (!issued) {
      raise(*error_);
    }
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

  void abort() override {
    TORCH_CHECK(
        false,
        "sagecomm: all_reduce: one operation cannot be aborted, its peers would wait for it; abort the process group");
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

  uint64_t getSequencenumber() const override {
    return sequence_;
  }
  float getDuration() const override {
    TORCH_CHECK(
        done_.load(std::memory_order_acquire), "sagecomm: all_reduce: its duration is not known before it is complete");
    return watch_.duration(kOp);
  }
  milliseconds getTimeout() const { // virtual in newer torch
    return timeout_;
  }
  uint64_t getCompletionKey() const { // virtual in newer torch
    return key_.get();
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

  // One operation of the core on its way. It keeps the work, and so the memory that it reads or writes.
  struct Step {
    c10::intrusive_ptr<SparseWork> work;
    bool first;
    sagecomm_work handle = 0;
  };

  // Whether it was accepted. What then comes of it, and a refusal as well, is the work's to tell.
  bool issue(sagecomm_op& op, bool first) {
    op.flags = SAGECOMM_ASYNC;
    op.timeout_ns = timeout_ > kNoTimeout ? toNs(timeout_) : 0;
    op.n_in = op.in != nullptr ? 1 : 0;
    op.n_out = op.out != nullptr ? 1 : 0;
    auto step =
        std::make_unique<Step>(Step{c10::intrusive_ptr<SparseWork>::unsafe_reclaim_from_nonowning(this), first});
    left_.fetch_add(1);
    sagecomm_error error;
    int32_t status = core().issue(group_.group, &op, &step->handle, &error);
    const bool accepted = status >= 0;
    if (first) {
      begun_ = status != SAGECOMM_INVALID;
      sequence_ = step->handle != 0 ? core().work_sequence(step->handle) : core().group_sequence(group_.group);
    }
    if (status == SAGECOMM_PENDING) {
      Step* ctx = step.release();
      status = core().on_done(ctx->handle, &SparseWork::stepDone, ctx, &error);
      if (status == SAGECOMM_PENDING) {
        return true;
      }
      step.reset(ctx);
    }
    settle(std::move(step), status, error);
    return accepted;
  }

  static void stepDone(void* ctx, int32_t status, const sagecomm_error* error) noexcept {
    CompletionGate gate;
    std::unique_ptr<Step> step(static_cast<Step*>(ctx));
    SparseWork& work = *step->work;
    if (!gate.open() && !work.leaving_.exchange(true)) {
      // The process is ending. Peers need the messages, but the memory stays until it has.
      c10::raw::intrusive_ptr::incref(&work);
    }
    work.settle(std::move(step), status, *error);
  }

  void settle(std::unique_ptr<Step> step, int32_t status, const sagecomm_error& error) {
    if (status < 0) {
      fail(error);
    } else if (step->first) {
      headersHaveCome();
    }
    if (step->handle != 0) {
      core().release(step->handle);
    }
    through();
  }

  void headersHaveCome() {
    for (int r = 0; r < group_.size; r++) {
      if (!headers_[r].agrees(headers_[0]) || headers_[r].elements < 0) {
        disagree(r);
        return;
      }
    }
    for (int i = 1; i < group_.size; i++) {
      const int peer = (group_.rank + i) % group_.size;
      receive(peer);
      if (mine_.elements > 0) {
        post(SAGECOMM_SEND, kIndices, peer, indices_[group_.rank]);
        post(SAGECOMM_SEND, kValues, peer, values_[group_.rank]);
      }
    }
  }

  void post(sagecomm_kind kind, Part part, int peer, const at::Tensor& tensor) {
    if (failed_.load()) {
      return;
    }
    sagecomm_segment segment{tensor.data_ptr(), tensor.nbytes()};
    sagecomm_op op{};
    op.kind = static_cast<uint8_t>(kind);
    op.dtype = SAGECOMM_UINT8;
    op.root = peer;
    op.tag = tagOf(headers_[0].number, part);
    (kind == SAGECOMM_SEND ? op.in : op.out) = &segment;
    issue(op, false);
  }

  void receive(int peer) {
    const SparseHeader& theirs = headers_[peer];
    if (theirs.elements == 0) {
      return;
    }
    try {
      indices_[peer] = at::empty({mine_.sparseDims, theirs.elements}, at::kLong);
      std::vector<int64_t> shape = values_[group_.rank].sizes().vec();
      shape[0] = theirs.elements;
      values_[peer] = at::empty(shape, values_[group_.rank].options());
    } catch (const std::exception& e) {
      giveUp(SAGECOMM_SYSTEM, group_.rank, me() + " has no memory for what came: " + reasonOf(e));
      return;
    }
    post(SAGECOMM_RECV, kIndices, peer, indices_[peer]);
    post(SAGECOMM_RECV, kValues, peer, values_[peer]);
  }

  void disagree(int rank) {
    giveUp(
        SAGECOMM_MISMATCH,
        rank,
        "ranks disagree in #" + std::to_string(sequence_) + " of group " + group_.info->name +
            ": rank 0 gave a sparse tensor of " + headers_[0].text() + ", rank " + std::to_string(rank) + " one of " +
            headers_[rank].text() + "; every rank must give the same shape, type and sparse dimensions");
  }

  std::string me() const {
    return "rank " + std::to_string(group_.rank);
  }

  static std::string reasonOf(const std::exception& e) {
    const auto* ours = dynamic_cast<const c10::Error*>(&e);
    return ours != nullptr ? ours->what_without_backtrace() : e.what();
  }

  // The other ranks, and what is still on its way, end with the group, for the same reason: this one's, or that of a rank
  // that was faster.
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

  // A step, or start(), is through; the last one finishes.
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
    watch_.stop();
    if (begun_) {
      ephemeral_.end();
    }
    c10::intrusive_ptr<c10::ivalue::Future> future;
    c10::intrusive_ptr<c10::ivalue::Future> futureResult;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_.store(true, std::memory_order_release);
      future = future_;
      futureResult = futureResult_;
    }
    core().group_hold(group_.group, -1, nullptr);
    changed_.notify_all();
    if (leaving_.load()) {
      return; // who would hear of it is gone
    }
    if (!failed_.load()) {
      group_.info->hooks->succeeded({opType_, sequence_, key_, watch_, {}});
    }
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
    group_.info->hooks->ended();
  }

  void add() {
    at::AutoDispatchBelowADInplaceOrView noAutograd;
    std::vector<at::Tensor> indices;
    std::vector<at::Tensor> values;
    for (int r = 0; r < group_.size; r++) {
      if (headers_[r].elements == 0) {
        continue;
      }
      try { // another process wrote them
        at::_validate_sparse_coo_tensor_args(indices_[r], values_[r], output_.sizes());
      } catch (const std::exception& e) {
        giveUp(SAGECOMM_INTERNAL, r, "rank " + std::to_string(r) + " sent what cannot be meant: " + reasonOf(e));
        return;
      }
      indices.push_back(indices_[r]);
      values.push_back(values_[r]);
    }
    SparseElements sum{indices_[group_.rank], values_[group_.rank]};
    if (!indices.empty()) {
      sum = summed({at::cat(indices, 1), at::cat(values, 0)}, output_.sizes());
    }
    const at::Tensor result =
        at::_sparse_coo_tensor_unsafe(sum.indices, sum.values, output_.sizes(), output_.options())._coalesced_(true);
    output_.copy_(result);
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
  const milliseconds timeout_; // of each step
  EphemeralTimeout::Share ephemeral_; // of group_
  bool begun_ = false; // written before the first step can be through
  at::Tensor output_;
  SparseHeader mine_{};
  uint64_t sequence_ = 0;
  const CompletionKey key_;
  Stopwatch watch_;
  // By rank; what comes writes them, before it is through.
  std::vector<SparseHeader> headers_;
  std::vector<at::Tensor> indices_;
  std::vector<at::Tensor> values_;

  std::atomic<int> left_{1}; // steps, and start()
  std::atomic<bool> failed_{false};
  std::atomic<bool> leaving_{false}; // the process ends
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
    const SparseGroup& group,
    int64_t number,
    const at::Tensor& tensor,
    milliseconds timeout,
    EphemeralTimeout::Share&& ephemeral) {
  auto work = c10::make_intrusive<SparseWork>(group, number, tensor, timeout, std::move(ephemeral));
  work->start();
  return work;
}

} // namespace sagecomm
