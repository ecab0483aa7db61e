#include "record.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace skin {

void write_call(const char *name, std::initializer_list<int64_t> arguments) {
  static const int file = [] {
    const char *path = getenv("EMULATOR_CALLS");
    return path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }();
  if (file < 0) return;
  std::string line = name;
  for (int64_t argument : arguments) line += " " + std::to_string(argument);
  line += "\n";
  if (write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) abort();
}

}  // namespace skin
