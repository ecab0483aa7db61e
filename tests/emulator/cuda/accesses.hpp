// accesses.hpp has the memory that a kernel sees: when its launch is queued, and when it runs.
#pragma once

#include <array>
#include <bitset>
#include <map>
#include <vector>

#include "../core/runtime.hpp"
#include "../ptx/module.hpp"

namespace driver {

// Notes the bytes that a kernel uses. All of them are 0, and stay so.
class Tracer : public ptx::Memory {
 public:
  void *at(uint64_t address, size_t bytes, bool write) override;
  // The bytes that were read or written, each range within one allocation. They throw a Trap where there is none.
  std::vector<emulator::Range> reads() const { return ranges(&Page::read); }
  std::vector<emulator::Range> writes() const { return ranges(&Page::written); }

 private:
  static constexpr size_t page_bytes = 1 << 16;
  using Bytes = std::bitset<page_bytes>;
  struct Page {
    Bytes read, written;
  };
  struct Recent {
    uint64_t number = UINT64_MAX;
    Page *page = nullptr;
  };

  std::vector<emulator::Range> ranges(Bytes Page::*which) const;

  std::map<uint64_t, Page> pages_;  // by number
  std::array<Recent, 256> recent_;  // by the lowest bits of the number
  std::array<unsigned char, 16> zeros_{}, sink_{};
};

// Memory of devices, by the ranges that a Tracer has found. Requires: the thread runs a task of a stream.
class Views : public ptx::Memory {
 public:
  Views(const std::vector<emulator::Range> &reads, const std::vector<emulator::Range> &writes);
  void *at(uint64_t address, size_t bytes, bool write) override;

 private:
  struct View {
    uint64_t begin, end;
    unsigned char *bytes;
  };
  // The ranges in the order of their addresses, and the one that was used last.
  struct Side {
    std::vector<View> views;
    size_t last = 0;
  };
  Side reads_, writes_;
};

}  // namespace driver
