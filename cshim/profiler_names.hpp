// profiler_names.hpp gives the names that operations have in torch's profiles: "sagecomm:all_reduce". Torch's tools take
// the part before the colon for the name that dist.get_backend() returns. That is another name where sagecomm is
// registered under a second one.
#pragma once

#include <atomic>
#include <string>
#include <utility>

namespace sagecomm {

// The profiler names of one group. Any thread may ask.
class ProfilerNames {
 public:
  explicit ProfilerNames(std::string group) : group_(std::move(group)) {
  }
  // Returns the profiler name for `own`, which begins with "sagecomm". The result is never freed, because a profiler may
  // read it after the group has gone. Called without the GIL; the first call of a group takes it.
  const char* nameFor(const char* own);

 private:
  const std::string group_;
  std::atomic<const char*> backend_{nullptr}; // what dist.get_backend() returns; never freed
};

} // namespace sagecomm
