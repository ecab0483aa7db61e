// record.hpp writes down the calls of a vendor's functions, for tests that compare each argument with what the vendor's
// documentation says. A line has the name of the function and its arguments in the order of its ABI, as decimal numbers. What an argument
// points to follows in lines that begin with another word, what a call gives back through a pointer in a line that begins with "->".
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace skin {

// Appends to the file that EMULATOR_CALLS names, if it names one.
void write_call(const char *name, std::initializer_list<int64_t> arguments);

// Appends a line with a text.
void record_text(const char *name, const char *text);
// Appends a line with bytes as words of 64 bits. The last one ends with zeros.
void record_words(const char *name, const void *bytes, size_t size);

template <class T>
int64_t number(T value) {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(value));
  else
    return static_cast<int64_t>(value);
}

template <class... T>
void record(const char *name, T... arguments) {
  write_call(name, {number(arguments)...});
}

// Notes what a call gives back, and returns its status.
template <class T>
int given(int status, T value) {
  if (status == 0) write_call("->", {number(value)});
  return status;
}

}  // namespace skin
