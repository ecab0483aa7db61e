// Reads the text of a module.
#include <bit>
#include <cctype>
#include <cstdlib>

#include "module.hpp"

namespace ptx {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// Takes the part in front of a separator off the text.
std::string_view cut(std::string_view &text, std::string_view separators) {
  const size_t at = text.find_first_of(separators);
  std::string_view part = text.substr(0, at);
  text = at == text.npos ? std::string_view() : text.substr(at + 1);
  return trimmed(part);
}

std::vector<std::string_view> list(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!trimmed(text).empty()) parts.push_back(cut(text, ","));
  return parts;
}

size_t width(std::string_view type) {
  if (type.starts_with(".pred")) return 1;
  for (auto [name, bytes] : {std::pair{"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}})
    if (type.size() > 2 && type[0] == '.' && type.substr(2) == name) return static_cast<size_t>(bytes);
  return 0;
}

// Reads a number: -1, 0x1f, 0f3F800000 (a float), 0d3FF0000000000000 (a double).
bool number(std::string_view text, uint64_t *value) {
  std::string digits(text);
  int base = 0;
  if (digits.starts_with("0f") || digits.starts_with("0d")) base = 16, digits.erase(0, 2);
  if (digits.empty()) return false;
  char *end = nullptr;
  *value = digits[0] == '-' ? static_cast<uint64_t>(strtoll(digits.c_str(), &end, base))
                            : strtoull(digits.c_str(), &end, base);
  return *end == 0;
}

class Parser {
 public:
  Module parse(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text = end == text.npos ? std::string_view() : text.substr(end + 1);
      line_++;
      line = trimmed(line.substr(0, line.find("//")));
      if (line.empty()) continue;
      if (kernel_ == nullptr)
        outside(line);
      else if (!inside_)
        signature(line);
      else
        body(line);
    }
    if (kernel_ != nullptr) refuse("the text ends inside of a kernel");
    return std::move(module_);
  }

 private:
  [[noreturn]] void refuse(const std::string &why) const {
    throw Refused("line " + std::to_string(line_) + ": " + why);
  }

  void outside(std::string_view line) {
    constexpr std::string_view entry = ".visible .entry ";
    if (line.starts_with(".version ") || line.starts_with(".target ") || line == ".address_size 64") return;
    if (!line.starts_with(entry) || !line.ends_with("(")) refuse("unknown outside of a kernel: " + std::string(line));
    line.remove_prefix(entry.size());
    std::string name(cut(line, "("));
    if (module_.contains(name)) refuse("there are two kernels " + name);
    kernel_ = &module_[name];
    *kernel_ = Kernel();
    kernel_->name = name;
    kernel_->registers.resize(special_registers);
    names_ = {{"%tid.x", tid_x}, {"%ntid.x", ntid_x}, {"%ctaid.x", ctaid_x}, {"%nctaid.x", nctaid_x}};
    labels_.clear();
    branches_.clear();
  }

  void signature(std::string_view line) {
    if (line == "{") {
      inside_ = true;
    } else if (line.starts_with(".maxntid ")) {
      line.remove_prefix(9);
      kernel_->most_threads = static_cast<uint32_t>(atoi(std::string(cut(line, ",")).c_str()));
    } else if (line.starts_with(".param ")) {
      parameter(line.substr(7));
    } else if (line != ")") {
      refuse("unknown in the head of a kernel: " + std::string(line));
    }
  }

  // ".u64 name," or ".align 8 .b8 name[512],"
  void parameter(std::string_view line) {
    size_t align = 0;
    std::string_view word = cut(line, " \t");
    if (word == ".align") {
      align = static_cast<size_t>(atoi(std::string(cut(line, " \t")).c_str()));
      word = cut(line, " \t");
    }
    size_t size = width(word);
    if (size == 0) refuse("unknown type of a parameter: " + std::string(word));
    std::string name(cut(line, ",["));
    if (line.ends_with("]") || line.ends_with("],")) size *= static_cast<size_t>(atoi(std::string(line).c_str()));
    align = align == 0 ? size : align;
    size_t at = (kernel_->parameter_bytes + align - 1) / align * align;
    kernel_->parameters.push_back({at, size});
    kernel_->parameter_bytes = at + size;
    names_[name] = add(at);
  }

  uint32_t add(uint64_t value) {
    kernel_->registers.push_back(value);
    return static_cast<uint32_t>(kernel_->registers.size() - 1);
  }

  void body(std::string_view line) {
    if (line == "}") {
      finish();
    } else if (line.ends_with(":")) {
      labels_[std::string(line.substr(0, line.size() - 1))] = kernel_->instructions.size();
    } else if (!line.ends_with(";")) {
      refuse("one statement in a line is known here, which ends with a semicolon: " + std::string(line));
    } else if (line.starts_with(".reg ")) {
      declare(line.substr(5, line.size() - 6));
    } else if (line != ".pragma \"nounroll\";") {
      instruction(line.substr(0, line.size() - 1));
    }
  }

  // ".b32 %r<20>": %r0 to %r19
  void declare(std::string_view line) {
    if (width(cut(line, " \t")) == 0) refuse("unknown type of registers: " + std::string(line));
    const std::string prefix(cut(line, "<"));
    const int count = atoi(std::string(line).c_str());
    if (count <= 0 || count > 100000) refuse("unknown declaration of registers: " + std::string(line));
    for (int i = 0; i < count; i++) names_[prefix + std::to_string(i)] = add(0);
  }

  uint32_t name(std::string_view text) {
    if (auto known = names_.find(std::string(text)); known != names_.end()) return known->second;
    uint64_t value = 0;
    if (!number(text, &value)) refuse("unknown operand " + std::string(text));
    return names_[std::string(text)] = add(value);
  }

  void instruction(std::string_view line) {
    const std::string whole(line);
    uint32_t guard = no_guard;
    bool unless = false;
    if (line.front() == '@') {
      std::string_view predicate = cut(line, " \t").substr(1);
      unless = predicate.starts_with("!");
      guard = name(predicate.substr(unless ? 1 : 0));
      line = trimmed(line);
    }
    Text text;
    std::string_view words = cut(line, " \t");
    text.name = cut(words, ".");
    while (!words.empty()) text.suffixes.emplace_back(cut(words, "."));
    std::string label;
    if (text.name == "bra")
      label = trimmed(line);
    else
      operands(line, &text);
    Instruction made = decode(text);
    if (made.run == nullptr) refuse("unknown instruction: " + whole);
    if (!label.empty()) branches_.push_back({kernel_->instructions.size(), label, line_});
    made.guard = guard;
    made.unless = unless;
    kernel_->instructions.push_back(made);
  }

  void operands(std::string_view line, Text *text) {
    for (line = trimmed(line); !line.empty(); line = trimmed(line)) {
      std::vector<uint32_t> &registers = text->operands.emplace_back();
      if (line.front() == '{') {
        line.remove_prefix(1);
        for (std::string_view each : list(cut(line, "}"))) registers.push_back(name(each));
        cut(line, ",");
      } else if (line.front() == '[') {
        line.remove_prefix(1);
        std::string_view address = cut(line, "]"), base = cut(address, "+");
        registers.push_back(name(base));
        uint64_t offset = 0;
        if (!address.empty() && !number(address, &offset)) refuse("unknown offset " + std::string(address));
        text->offset = static_cast<int64_t>(offset);
        cut(line, ",");
      } else {
        registers.push_back(name(cut(line, ",")));
      }
      if (registers.empty() || registers.size() > 4) refuse("an operand has 1 to 4 registers");
    }
  }

  void finish() {
    for (const auto &[at, label, line] : branches_) {
      auto known = labels_.find(label);
      if (known == labels_.end()) {
        line_ = line;
        refuse("a branch to " + label + ", which is not in this kernel");
      }
      kernel_->instructions[at].target = known->second;
    }
    kernel_ = nullptr;
    inside_ = false;
  }

  Module module_;
  int line_ = 0;
  Kernel *kernel_ = nullptr;
  bool inside_ = false;  // of its body
  std::map<std::string, uint32_t> names_;
  std::map<std::string, size_t> labels_;
  struct Branch {
    size_t instruction;
    std::string label;
    int line;
  };
  std::vector<Branch> branches_;
};

}  // namespace

Module parse(std::string_view text) { return Parser().parse(text); }

}  // namespace ptx
