// stacks.cpp walks the frames of the calling thread and asks the core for a number of a new stack. See stacks.hpp.
#include "stacks.hpp"

#include <functional>
#include <string>

#include <pybind11/pybind11.h>

#include "core.hpp"

namespace sagecomm {

namespace {

constexpr size_t kDeepest = 24; // the innermost frames that are recorded
constexpr size_t kMostStacks = 4096; // more than the core has room for; later stacks have no number

std::string textOf(PyObject* object, const char* attribute) {
  PyObject* value = PyObject_GetAttrString(object, attribute);
  const char* utf8 = value != nullptr ? PyUnicode_AsUTF8(value) : nullptr;
  std::string text = utf8 != nullptr ? utf8 : "?";
  Py_XDECREF(value);
  PyErr_Clear();
  for (char& c : text) {
    if (c == '\t' || c == '\n') {
      c = ' ';
    }
  }
  return text;
}

} // namespace

uint64_t Stacks::here() {
  if (exiting()) {
    return 0;
  }
  std::vector<Frame> frames;
  std::string text;
  size_t hash = 0;
  {
    pybind11::gil_scoped_acquire gil;
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr && frames.size() < kDeepest) {
      frames.push_back({PyFrame_GetCode(frame), PyFrame_GetLineNumber(frame)});
      hash = hash * 31 + std::hash<const void*>()(frames.back().code) + static_cast<size_t>(frames.back().line);
      PyFrameObject* caller = PyFrame_GetBack(frame);
      Py_DECREF(frame);
      frame = caller;
    }
    Py_XDECREF(frame);
    uint64_t number = 0;
    bool found = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto range = known_.equal_range(hash);
      for (auto it = range.first; it != range.second && !found; ++it) {
        if (it->second.frames == frames) {
          found = true;
          number = it->second.number;
        }
      }
      found = found || known_.size() >= kMostStacks;
    }
    if (found || frames.empty()) {
      for (const Frame& each : frames) {
        Py_DECREF(each.code);
      }
      return frames.empty() ? 0 : number;
    }
    for (const Frame& each : frames) {
      PyObject* code = reinterpret_cast<PyObject*>(each.code);
      text += textOf(code, "co_filename") + "\t" + std::to_string(each.line) + "\t" + textOf(code, "co_name") + "\n";
    }
  }
  const uint64_t number = api_.group_stack(group_, text.c_str());
  const std::lock_guard<std::mutex> lock(mutex_);
  known_.insert({hash, {std::move(frames), number}}); // two threads may insert the same stack; both entries are right
  return number;
}

} // namespace sagecomm
