#include "accesses.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace driver {
namespace {

using emulator::Range;

uint64_t number(const void *address) { return reinterpret_cast<uint64_t>(address); }
void *pointer(uint64_t address) { return reinterpret_cast<void *>(address); }

// Appends a range, cut where allocations end.
void append(std::vector<Range> *all, uint64_t begin, uint64_t end) {
  while (begin < end) {
    emulator::MemoryAttributes memory;
    const bool known = emulator::memory_attributes(pointer(begin), &memory) == emulator::Status::success;
    if (!known || memory.kind == emulator::MemoryKind::pageable)
      throw ptx::Trap(ptx::Trap::illegal_address, "it uses memory that is not the device's");
    const uint64_t part = std::min(end, number(memory.base) + memory.size);
    all->push_back({pointer(begin), part - begin});
    begin = part;
  }
}

}  // namespace

void *Tracer::at(uint64_t address, size_t bytes, bool write) {
  const uint64_t page = address / page_bytes;
  Recent &recent = recent_[page % recent_.size()];
  if (recent.number != page) recent = {page, &pages_[page]};
  Bytes &used = write ? recent.page->written : recent.page->read;
  for (size_t i = 0; i < bytes; i++) used.set(address % page_bytes + i);  // they are aligned, so they lie in one page
  return write ? sink_.data() : zeros_.data();
}

std::vector<Range> Tracer::ranges(Bytes Page::*which) const {
  std::vector<Range> all;
  uint64_t begin = 0, end = 0;
  for (const auto &[page, bytes] : pages_) {
    const Bytes &used = bytes.*which;
    for (size_t i = used._Find_first(); i < page_bytes; i = used._Find_next(i)) {
      const uint64_t address = page * page_bytes + i;
      if (address != end) {
        append(&all, begin, end);
        begin = address;
      }
      end = address + 1;
    }
  }
  append(&all, begin, end);
  return all;
}

Views::Views(const std::vector<Range> &reads, const std::vector<Range> &writes) {
  for (auto [ranges, side] : {std::pair{&reads, &reads_}, std::pair{&writes, &writes_}})
    for (const Range &range : *ranges) {
      const uint64_t begin = number(range.address);
      side->views.push_back(
          {begin, begin + range.length, static_cast<unsigned char *>(emulator::host_view(range.address))});
    }
}

void *Views::at(uint64_t address, size_t bytes, bool write) {
  Side &side = write ? writes_ : reads_;
  auto holds = [&](size_t i) {
    return i < side.views.size() && address >= side.views[i].begin && address + bytes <= side.views[i].end;
  };
  if (!holds(side.last)) {
    auto behind = std::upper_bound(side.views.begin(), side.views.end(), address,
                                   [](uint64_t at, const View &view) { return at < view.begin; });
    side.last = static_cast<size_t>(behind - side.views.begin()) - 1;
    if (!holds(side.last)) {
      fprintf(stderr, "fake CUDA: a kernel uses an address that follows from data, which is not emulated\n");
      abort();
    }
  }
  const View &view = side.views[side.last];
  return view.bytes + (address - view.begin);
}

}  // namespace driver
