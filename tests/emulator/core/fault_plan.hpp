// fault_plan.hpp parses EMULATOR_FAULTS: faults that a test orders in advance, separated by semicolons.
//
//   cudaMalloc@3=out_of_memory   the third call of this symbol returns a status (a name of status.hpp)
//   cudaMalloc@3+=#700           the third and every later call returns the skin's number 700
//   cudaEventRecord@3=#0         the third call does nothing and reports success
//   HcclAllReduce@2=late#9@100   the second call does its work 100 ms late, and returns the number: see late.hpp
//   memory=64M                   the memory of each device
//   missing=cuMemHostRegister    a symbol that cannot be found
//   stuck=2@5                    stream 2 (the second that was created) begins nothing after its first 5 tasks
//   delay=300                    each task begins up to 300 us late, by the seed
//   breaks=aten::cosh@2=#710     the second task whose description begins so breaks the devices of the process: neither it nor any
//                                other task begins from then on, and all calls that use a device return the number or the status
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "status.hpp"

namespace emulator {

class FaultPlan {
 public:
  struct Fault {
    Status status;
    int code;  // with Status::injected; with Status::success, that of late.hpp
    int late_ms = 0;
  };

  // Returns an empty text, or what is wrong with the plan.
  std::string parse(std::string_view plan);

  // Counts a call of the symbol and returns the fault it is to have.
  std::optional<Fault> call(std::string_view symbol);
  bool missing(std::string_view symbol) const;
  std::optional<uint64_t> stuck_after(uint64_t stream) const;  // a number of tasks
  // Counts a task that is about to begin and returns the fault with which it breaks the devices.
  std::optional<Fault> begins(std::string_view task);
  size_t memory() const { return memory_; }  // 0: not in the plan
  uint32_t delay_us() const { return delay_us_; }

 private:
  struct Rule {
    uint64_t first = 1;
    bool later_too = false;
    Fault fault{};
  };
  struct Breaks {
    std::string task;  // how its description begins
    uint64_t left = 1;
    Fault fault{};
  };
  std::string parse_rule(std::string_view rule);
  std::string parse_breaks(std::string_view value);

  std::map<std::string, std::vector<Rule>, std::less<>> rules_;
  std::map<std::string, uint64_t, std::less<>> calls_;
  std::vector<std::string> missing_;
  std::map<uint64_t, uint64_t> stuck_;
  std::vector<Breaks> breaks_;
  size_t memory_ = 0;
  uint32_t delay_us_ = 0;
};

}  // namespace emulator
