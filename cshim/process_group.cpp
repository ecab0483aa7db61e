#include "process_group.hpp"

#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "store.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

c10::intrusive_ptr<ProcessGroupSagecomm> ProcessGroupSagecomm::create(
    const c10d::DistributedBackendOptions& opts, c10::intrusive_ptr<GroupOptions> options) {
  std::vector<sagecomm_option> settings;
  for (const auto& [name, value] : options->settings) {
    settings.push_back({name.c_str(), value.c_str()});
  }
  options->group_name = opts.group_id;
  options->global_ranks_in_group.assign(opts.global_ranks_in_group.begin(), opts.global_ranks_in_group.end());
  StoreView store(opts.store);
  sagecomm_group_config config{};
  config.struct_size = sizeof config;
  config.rank = opts.group_rank;
  config.size = opts.group_size;
  config.name = opts.group_id.c_str();
  config.timeout_ns = toNs(options->timeout);
  config.store = store.view();
  config.options = settings.data();
  config.n_options = static_cast<uint32_t>(settings.size());

  sagecomm_group group = 0;
  sagecomm_error error;
  WithoutGil unlocked;
  const int32_t status = core().group_create(&config, &group, &error);
  if (status < 0) {
    if (store.interrupted()) {
      std::rethrow_exception(store.interrupted());
    }
    raise(error);
  }
  return c10::make_intrusive<ProcessGroupSagecomm>(group, opts.group_rank, opts.group_size, std::move(options));
}

ProcessGroupSagecomm::ProcessGroupSagecomm(
    sagecomm_group group, int rank, int size, c10::intrusive_ptr<GroupOptions> options)
    : Backend(rank, size),
      api_(core()),
      group_(group),
      options_(std::move(options)),
      info_(std::make_shared<GroupInfo>(GroupInfo{options_->group_name, rank})),
      timeoutMs_(options_->timeout.count()) {
  init();
}

ProcessGroupSagecomm::~ProcessGroupSagecomm() {
  destroy();
  delete cause_.load();
}

void ProcessGroupSagecomm::shutdown() {
  destroy();
}

// Errors of the destruction have no reader here. A cause of failure is kept for who uses the object afterwards.
void ProcessGroupSagecomm::destroy() noexcept {
  if (forked() || exiting() || shutDown_.exchange(true)) {
    return;
  }
  WithoutGil unlocked;
  lastSequence_.store(api_.group_sequence(group_));
  auto cause = std::make_unique<sagecomm_error>();
  if (api_.group_error(group_, cause.get()) < 0) {
    cause_.store(cause.release());
  }
  api_.group_destroy(group_, nullptr);
}

void ProcessGroupSagecomm::abort() {
  if (shutDown_.load() || exiting()) {
    return;
  }
  WithoutGil unlocked;
  sagecomm_error error;
  if (api_.group_abort(group_, "abort() was called", &error) < 0) {
    raise(error);
  }
}

void ProcessGroupSagecomm::refuseAfterShutdown(const char* op) const {
  if (const sagecomm_error* cause = cause_.load()) {
    raise(*cause);
  }
  sagecomm_error error;
  fillError(
      error,
      SAGECOMM_ABORTED,
      op,
      info_->name,
      "rank " + std::to_string(rank_) + " has shut group " + info_->name + " down; create a new group");
  raise(error);
}

// ---- properties ----

const std::string ProcessGroupSagecomm::getBackendName() const {
  return "sagecomm";
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupSagecomm::getBackendOptions() {
  return options_;
}

void ProcessGroupSagecomm::setTimeout(milliseconds timeout) {
  WithoutGil unlocked;
  sagecomm_error error;
  if (api_.group_set_timeout(group_, toNs(timeout), &error) < 0) {
    raise(error);
  }
  timeoutMs_.store(timeout.count());
  options_->timeout = timeout;
}

uint64_t ProcessGroupSagecomm::getSequenceNumberForGroup() {
  if (shutDown_.load()) {
    return lastSequence_.load();
  }
  WithoutGil unlocked;
  return api_.group_sequence(group_);
}

// Numbers start at 0 on every rank by themselves.
void ProcessGroupSagecomm::setSequenceNumberForGroup() {
}

c10d::ErrorType ProcessGroupSagecomm::getError() {
  int32_t status = SAGECOMM_OK;
  if (shutDown_.load()) {
    const sagecomm_error* cause = cause_.load();
    status = cause == nullptr ? SAGECOMM_OK : cause->status;
  } else {
    WithoutGil unlocked;
    status = api_.group_error(group_, nullptr);
  }
  switch (status) {
    case SAGECOMM_OK:
      return c10d::ErrorType::SUCCESS;
    case SAGECOMM_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case SAGECOMM_PEER_FAILURE:
    case SAGECOMM_MISMATCH:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

std::string ProcessGroupSagecomm::statsJson() const {
  WithoutGil unlocked;
  std::string json(4096, '\0');
  for (;;) {
    const int64_t needed = api_.group_stats(group_, json.data(), json.size());
    TORCH_CHECK(needed >= 0, "sagecomm: statistics of group ", info_->name, " are not available: status ", needed);
    const bool fits = static_cast<size_t>(needed) <= json.size();
    json.resize(fits ? static_cast<size_t>(std::max<int64_t>(needed - 1, 0)) : static_cast<size_t>(needed) * 2);
    if (fits) {
      return json;
    }
  }
}

} // namespace sagecomm
