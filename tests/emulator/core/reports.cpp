#include "reports.hpp"

#include <algorithm>
#include <cstdio>

namespace emulator {

namespace {

std::string place(Span where, const Allocation *allocation) {
  char text[64];
  if (!allocation) {
    snprintf(text, sizeof text, "%zu bytes at 0x%zx", where.length, where.address);
    return text;
  }
  snprintf(text, sizeof text, "%zu bytes at offset %zu of ", where.length, where.address - allocation->span.address);
  return text + allocation->what + " (" + std::to_string(allocation->span.length) + " bytes)";
}

std::string side(const Report::Side &side) {
  return side.agent_name + " " + (side.writes ? "writes" : "reads") + " in [" + side.what + "]";
}

Report::Side side(const Operation &operation, bool writes) {
  return {operation.agent, *operation.agent_name, operation.what, writes};
}

}  // namespace

std::string Report::text() const {
  std::string text =
      "conflict: " + side(later) + ", " + side(earlier) + ", without an order: " + place + ": " + missing;
  if (times > 1) text += " (" + std::to_string(times) + " times)";
  return text;
}

void Reports::add(const Operation &earlier, bool earlier_writes, const Operation &later, bool later_writes, Span where,
                  const Allocation *allocation) {
  Key key{*earlier.agent_name, earlier.what, *later.agent_name, later.what};
  auto known = known_.find(key);
  if (known != known_.end()) {
    Known &last = known->second;
    Report &report = list_[last.index];
    if (last.earlier != earlier.serial || last.later != later.serial) {
      report.times++;
      last.earlier = earlier.serial;
      last.later = later.serial;
    } else if (report.times == 1 && report.where.end() == where.address) {
      report.where.length += where.length;
      report.place = place(report.where, allocation);
    }
    return;
  }
  if (list_.size() == limit_) {
    omitted_++;
    return;
  }
  std::string missing =
      *later.agent_name + " does not wait for " + *earlier.agent_name + " after [" + earlier.what + "]";
  if (allocation && earlier.serial < allocation->serial) {
    missing += "; the memory was reused: [" + earlier.what + "] belongs to " +
               (allocation->previous.empty() ? "an earlier allocation" : allocation->previous) +
               ", whose release did not wait for " + *earlier.agent_name + " (record_stream)";
  }
  known_[key] = {list_.size(), earlier.serial, later.serial};
  list_.push_back({side(earlier, earlier_writes), side(later, later_writes), where, place(where, allocation),
                   std::move(missing), 1});
}

std::string Reports::text() const {
  std::string text;
  for (const auto &report : list_) text += report.text() + "\n";
  if (omitted_) text += std::to_string(omitted_) + " more conflicts\n";
  return text;
}

void Reports::clear() {
  list_.clear();
  known_.clear();
  omitted_ = 0;
}

}  // namespace emulator
