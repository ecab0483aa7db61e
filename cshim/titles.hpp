// titles.hpp: what operations are called in torch's profiles: "sagecomm:all_reduce". Torch takes the part before the colon
// for the name that dist.get_backend() gives, which is another one where ours is registered under that one as well.
#pragma once

#include <atomic>
#include <string>
#include <utility>

namespace sagecomm {

class Titles {
 public:
  explicit Titles(std::string group) : group_(std::move(group)) {
  }
  // `title` begins with our own name. The result is never freed: a profiler may read it after the group has gone. Without
  // the GIL; the first call takes it.
  const char* of(const char* title);

 private:
  const std::string group_;
  std::atomic<const char*> name_{nullptr}; // static
};

} // namespace sagecomm
