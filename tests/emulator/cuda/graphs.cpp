// Captures and graphs. An executable graph is a name of the graph that it was made of, which lives as long as either.
#include <map>
#include <mutex>

#include "driver.hpp"

using driver::result;
using driver::stream;

namespace {

struct Executable {
  emulator::GraphHandle graph;
};

std::mutex mutex;
std::map<emulator::GraphHandle, int> owners;  // the graph itself, and executables of it

emulator::GraphHandle graph(CUgraph handle) { return reinterpret_cast<emulator::GraphHandle>(handle); }

CUresult give_up(emulator::GraphHandle owned) {
  std::lock_guard lock(mutex);
  auto found = owners.find(owned);
  REQUIRE(found != owners.end(), CUDA_ERROR_INVALID_VALUE);
  if (--found->second > 0) return CUDA_SUCCESS;
  owners.erase(found);
  return result(emulator::destroy_graph(owned));
}

CUresult instantiate(CUgraphExec *executable, CUgraph of) {
  std::lock_guard lock(mutex);
  auto found = owners.find(graph(of));
  REQUIRE(executable != nullptr && found != owners.end(), CUDA_ERROR_INVALID_VALUE);
  found->second++;
  *executable = reinterpret_cast<CUgraphExec>(new Executable{graph(of)});
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
  auto known = emulator::CaptureStatus::none;
  uint64_t number = 0;
  CUresult got = result(emulator::capture_status(stream(handle), &known, &number));
  REQUIRE(got == CUDA_SUCCESS, got);
  *status = known == emulator::CaptureStatus::none     ? CU_STREAM_CAPTURE_STATUS_NONE
            : known == emulator::CaptureStatus::active ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (id != nullptr) *id = number;
  return CUDA_SUCCESS;
}

// Also gives the graph. Nodes have no names here, so no dependencies are given.
CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *captured,
                      const CUgraphNode **nodes, size_t *count) {
  if (captured != nullptr) {
    emulator::GraphHandle made = nullptr;
    const CUresult found = result(emulator::captured_graph(stream(handle), &made));
    REQUIRE(found == CUDA_SUCCESS, found);
    *captured = reinterpret_cast<CUgraph>(made);
    skin::record("->", made);
  }
  if (nodes != nullptr) *nodes = nullptr;
  if (count != nullptr) *count = 0;
  return capture_info(handle, status, id);
}

}  // namespace

bool driver::has_executables(CUgraph of) {
  std::lock_guard lock(mutex);
  auto found = owners.find(graph(of));
  return found != owners.end() && found->second > 1;
}

extern "C" {

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  BEGIN_IN_CONTEXT(handle, mode);
  REQUIRE(mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::begin_capture(stream(handle), static_cast<emulator::CaptureMode>(mode)));
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *captured) {
  BEGIN_IN_CONTEXT(handle, captured);
  *captured = nullptr;
  emulator::GraphHandle made = nullptr;
  CUresult status = result(emulator::end_capture(stream(handle), &made));
  if (made == nullptr) return status;
  std::lock_guard lock(mutex);
  owners[made] = 1;
  *captured = reinterpret_cast<CUgraph>(made);
  return status;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  BEGIN_IN_CONTEXT(handle, status);
  return capture_info(handle, status, nullptr);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *captured,
                                const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
  BEGIN_IN_CONTEXT(handle, status, id, captured, nodes, edges, count);
  if (edges != nullptr) *edges = nullptr;
  return capture_info(handle, status, id, captured, nodes, count);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *captured,
                                   const CUgraphNode **nodes, size_t *count) {
  BEGIN_IN_CONTEXT(handle, status, id, captured, nodes, count);
  return capture_info(handle, status, id, captured, nodes, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  BEGIN(mode);
  skin::record("CUstreamCaptureMode", *mode);
  REQUIRE(*mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  auto exchanged = static_cast<emulator::CaptureMode>(*mode);
  CUresult status = result(emulator::exchange_capture_mode(&exchanged));
  *mode = static_cast<CUstreamCaptureMode>(exchanged);
  return driver::given(status, *mode);
}

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph of, unsigned long long flags) {
  BEGIN_IN_CONTEXT(executable, of, flags);
  return instantiate(executable, of);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph of, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  BEGIN_IN_CONTEXT(executable, of, parameters);
  CUresult status = instantiate(executable, of);
  parameters->result_out = status == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return status;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  BEGIN_IN_CONTEXT(executable, handle);
  REQUIRE(executable != nullptr, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::launch_graph(reinterpret_cast<Executable *>(executable)->graph, stream(handle)));
}

CUresult cuGraphUpload(CUgraphExec executable, CUstream handle) {
  BEGIN_IN_CONTEXT(executable, handle);
  return executable == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  BEGIN(executable);
  REQUIRE(executable != nullptr, CUDA_ERROR_INVALID_VALUE);
  auto *destroyed = reinterpret_cast<Executable *>(executable);
  CUresult status = give_up(destroyed->graph);
  delete destroyed;
  return status;
}

CUresult cuGraphDestroy(CUgraph destroyed) {
  BEGIN(destroyed);
  return give_up(graph(destroyed));
}

// Gives the number of nodes; nodes have no names here.
CUresult cuGraphGetNodes(CUgraph of, CUgraphNode *nodes, size_t *count) {
  BEGIN(of, nodes, count);
  REQUIRE(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);
  return result(emulator::graph_size(graph(of), count));
}

}  // extern "C"
