#include "fault_plan.hpp"

#include <algorithm>
#include <cctype>

#include "config.hpp"

namespace emulator {
namespace {

// Anything else is a mistake in the plan, which would never fire.
bool is_symbol(const std::string &text) {
  auto belongs = [](unsigned char c) { return isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::all_of(text.begin(), text.end(), belongs);
}

// Reads "#NUMBER" or the name of a status. Returns an empty text, or what is wrong.
std::string parse_status(const std::string &value, FaultPlan::Fault *fault) {
  if (!value.empty() && value[0] == '#') {
    uint64_t number = 0;
    if (!parse_number(value.c_str() + 1, &number) || number > INT32_MAX) return "expected #NUMBER";
    *fault = {Status::injected, static_cast<int>(number), 0};
    return "";
  }
  auto status = status_named(value);
  if (!status || *status == Status::injected || *status == Status::success) return "no status of this name";
  *fault = {*status, 0, 0};
  return "";
}

}  // namespace

std::string FaultPlan::parse(std::string_view plan) {
  while (!plan.empty()) {
    size_t end = std::min(plan.find(';'), plan.size());
    if (end > 0) {
      std::string wrong = parse_rule(plan.substr(0, end));
      if (!wrong.empty()) return "'" + std::string(plan.substr(0, end)) + "': " + wrong;
    }
    plan.remove_prefix(std::min(end + 1, plan.size()));
  }
  return "";
}

std::string FaultPlan::parse_rule(std::string_view rule) {
  size_t equals = rule.find('=');
  if (equals == std::string_view::npos) return "there is no '='";
  std::string key(rule.substr(0, equals));
  std::string value(rule.substr(equals + 1));
  if (key == "memory") return parse_bytes(value.c_str(), &memory_) && memory_ > 0 ? "" : "expected bytes, such as 64M";
  if (key == "missing") {
    if (!is_symbol(value)) return "expected a symbol";
    missing_.push_back(value);
    return "";
  }
  uint64_t number = 0;
  if (key == "delay") {
    if (!parse_number(value.c_str(), &number) || number > 1000000) return "expected microseconds";
    delay_us_ = static_cast<uint32_t>(number);
    return "";
  }
  if (key == "stuck") {
    size_t at = value.find('@');
    uint64_t after = 0;
    if (!parse_number(value.substr(0, at).c_str(), &number) || number == 0) return "expected the number of a stream";
    if (at != std::string::npos && !parse_number(value.substr(at + 1).c_str(), &after))
      return "expected a number of tasks";
    stuck_[number] = after;
    return "";
  }
  if (key == "breaks") return parse_breaks(value);
  size_t at = key.find('@');
  if (at == std::string::npos) return "expected SYMBOL@N=STATUS, memory, missing, delay, stuck or breaks";
  if (!is_symbol(key.substr(0, at))) return "expected a symbol before '@'";
  Rule parsed;
  std::string place = key.substr(at + 1);
  if (!place.empty() && place.back() == '+') {
    parsed.later_too = true;
    place.pop_back();
  }
  if (!parse_number(place.c_str(), &parsed.first) || parsed.first == 0) return "expected the number of a call, from 1";
  const std::string_view late = "late#";
  if (value.compare(0, late.size(), late) == 0) {
    const size_t behind = value.find('@');
    uint64_t ms = 0;
    if (behind == std::string::npos ||
        !parse_number(value.substr(late.size(), behind - late.size()).c_str(), &number) || number > INT32_MAX ||
        !parse_number(value.c_str() + behind + 1, &ms) || ms > 60000)
      return "expected late#NUMBER@MILLISECONDS";
    parsed.fault = {Status::success, static_cast<int>(number), static_cast<int>(ms)};
  } else if (std::string wrong = parse_status(value, &parsed.fault); !wrong.empty()) {
    return wrong;
  }
  rules_[key.substr(0, at)].push_back(parsed);
  return "";
}

std::string FaultPlan::parse_breaks(std::string_view value) {
  const size_t at = value.rfind('@'), equals = value.rfind('=');
  if (at == std::string_view::npos || equals == std::string_view::npos || equals < at || at == 0)
    return "expected breaks=TASK@N=STATUS";
  Breaks parsed;
  parsed.task = value.substr(0, at);
  const std::string place(value.substr(at + 1, equals - at - 1));
  if (!parse_number(place.c_str(), &parsed.left) || parsed.left == 0) return "expected the number of a task, from 1";
  std::string wrong = parse_status(std::string(value.substr(equals + 1)), &parsed.fault);
  if (wrong.empty()) breaks_.push_back(parsed);
  return wrong;
}

std::optional<FaultPlan::Fault> FaultPlan::begins(std::string_view task) {
  for (Breaks &rule : breaks_)
    if (rule.left > 0 && task.compare(0, rule.task.size(), rule.task) == 0 && --rule.left == 0) return rule.fault;
  return std::nullopt;
}

std::optional<FaultPlan::Fault> FaultPlan::call(std::string_view symbol) {
  auto rules = rules_.find(symbol);
  if (rules == rules_.end()) return std::nullopt;
  uint64_t number = ++calls_[std::string(symbol)];
  for (const Rule &rule : rules->second)
    if (number == rule.first || (rule.later_too && number > rule.first)) return rule.fault;
  return std::nullopt;
}

bool FaultPlan::missing(std::string_view symbol) const {
  return std::find(missing_.begin(), missing_.end(), symbol) != missing_.end();
}

std::optional<uint64_t> FaultPlan::stuck_after(uint64_t stream) const {
  auto found = stuck_.find(stream);
  if (found == stuck_.end()) return std::nullopt;
  return found->second;
}

}  // namespace emulator
