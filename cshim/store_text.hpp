// store_text.hpp words errors of stores for the core.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>

#include <c10/util/Exception.h>

namespace sagecomm {

inline void explain(char* why, size_t n, const char* what) {
  if (why != nullptr && n > 0) {
    std::snprintf(why, n, "%s", what);
  }
}

// Copies the text of the exception that is being handled; of torch's exceptions without their C++ stack.
inline int32_t explainCurrent(char* why, size_t n) noexcept {
  try {
    throw;
  } catch (const c10::Error& e) {
    explain(why, n, e.what_without_backtrace());
  } catch (const std::exception& e) {
    explain(why, n, e.what());
  } catch (...) {
    explain(why, n, "the store raised something that is not an exception");
  }
  return -1;
}

} // namespace sagecomm
