#include "history.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace emulator {

namespace {

bool known(const Operation &operation, const Clock &at) { return at.get(operation.agent) >= operation.step; }

}  // namespace

// Makes a border between cells at the address.
void History::split(uintptr_t address) {
  auto next = cells_.upper_bound(address);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->first == address || cell->second.end <= address) return;
  Cell rest = cell->second;
  cell->second.end = address;
  cells_.emplace_hint(next, address, std::move(rest));
}

// Drops what `at` comes after. An access whose clock has an unresolved wait replaces only accesses behind the same
// wait: the writer of the flag may yet come before it and be unordered to what it would replace.
void History::replace(std::vector<OperationPointer> &list, const Clock &at) {
  std::erase_if(list, [&](const auto &earlier) { return known(*earlier, at) && at.waits_within(earlier->clock); });
}

void History::access(const OperationPointer &operation, const Clock &at, bool write, Span span,
                     const Conflict &conflict) {
  const uintptr_t begin = span.address, end = span.end();
  if (begin == end) return;
  split(begin);
  split(end);
  auto record = [&](Cell &cell) {
    if (write) {
      replace(cell.writes, at);
      replace(cell.reads, at);
    } else {
      replace(cell.reads, at);
    }
    auto &list = write ? cell.writes : cell.reads;
    if (std::find(list.begin(), list.end(), operation) != list.end()) return;  // overlapping ranges of one call
    if (list.size() == longest_list) list.erase(list.begin());
    list.push_back(operation);
  };
  uintptr_t at_address = begin;
  auto fill = [&](Cells::iterator next, uintptr_t to) {
    if (at_address == to) return;
    Cell cell{to, {}, {}};
    record(cell);
    cells_.emplace_hint(next, at_address, std::move(cell));
  };
  auto next = cells_.lower_bound(begin);
  for (; next != cells_.end() && next->first < end; ++next) {
    fill(next, next->first);
    Cell &cell = next->second;
    const Span where{next->first, cell.end - next->first};
    for (const auto &earlier : cell.writes)
      if (!known(*earlier, at)) conflict(earlier, true, where);
    for (const auto &earlier : cell.reads)
      if (write && !known(*earlier, at)) conflict(earlier, false, where);
    record(cell);
    at_address = cell.end;
  }
  fill(next, end);
  merge(begin, end);
}

// Joins neighbours that are equal, from the cell before the range to the one behind it.
void History::merge(uintptr_t begin, uintptr_t end) {
  auto cell = cells_.lower_bound(begin);
  if (cell != cells_.begin()) --cell;
  while (cell != cells_.end() && cell->first < end) {
    auto next = std::next(cell);
    if (next == cells_.end()) return;
    if (cell->second.end == next->first && cell->second.writes == next->second.writes &&
        cell->second.reads == next->second.reads) {
      cell->second.end = next->second.end;
      cells_.erase(next);
    } else {
      cell = next;
    }
  }
}

void History::visit(const Clock &at, Span span, const Conflict &conflict) const {
  auto cell = cells_.upper_bound(span.address);
  if (cell != cells_.begin()) --cell;
  for (; cell != cells_.end() && cell->first < span.end(); ++cell) {
    const uintptr_t begin = std::max(cell->first, span.address), end = std::min(cell->second.end, span.end());
    if (begin >= end) continue;
    for (const auto &earlier : cell->second.writes)
      if (!known(*earlier, at)) conflict(earlier, true, {begin, end - begin});
    for (const auto &earlier : cell->second.reads)
      if (!known(*earlier, at)) conflict(earlier, false, {begin, end - begin});
  }
}

void History::forget(Span span) {
  if (span.length == 0) return;
  split(span.address);
  split(span.end());
  cells_.erase(cells_.lower_bound(span.address), cells_.lower_bound(span.end()));
}

void History::clear() { cells_.clear(); }

void History::prune(const std::function<bool(const Operation &)> &condition) {
  auto drop = [&](std::vector<OperationPointer> &list) {
    std::erase_if(list, [&](const auto &operation) { return condition(*operation); });
  };
  for (auto cell = cells_.begin(); cell != cells_.end();) {
    drop(cell->second.reads);
    drop(cell->second.writes);
    if (cell->second.reads.empty() && cell->second.writes.empty())
      cell = cells_.erase(cell);
    else
      ++cell;
  }
  merge(0, UINTPTR_MAX);
}

void History::each(const std::function<void(const Operation &)> &visitor) const {
  for (const auto &[address, cell] : cells_) {
    for (const auto &operation : cell.reads) visitor(*operation);
    for (const auto &operation : cell.writes) visitor(*operation);
  }
}

}  // namespace emulator
