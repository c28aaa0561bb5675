#include <memory>
#include <utility>

#include "tests/gpu/simulated/api.h"

using namespace gradrail::simulated;
using cuda::Result;

namespace {

/// The graph of a handle, null for an unknown one.
template <typename Handle>
std::shared_ptr<Graph> find(const std::map<Handle, std::shared_ptr<Graph>>& graphs, Handle handle) {
  const auto found = graphs.find(handle);
  return found == graphs.end() ? nullptr : found->second;
}

}  // namespace

GRADRAIL_SIMULATED Result cuStreamBeginCapture_v2(cuda::Stream stream, int mode) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (mode != cuda::kStreamCaptureRelaxed) return cuda::kInvalidValue;
  return stream_of(stream)->begin_capture() ? cuda::kSuccess : cuda::kStreamCaptureUnsupported;
}

GRADRAIL_SIMULATED Result cuStreamEndCapture(cuda::Stream stream, cuda::Graph* handle) {
  *handle = nullptr;
  if (!stream_of(stream)->is_captured()) return or_late_error(cuda::kInvalidValue);
  std::shared_ptr<Graph> graph = stream_of(stream)->end_capture();
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  if (graph == nullptr) return cuda::kStreamCaptureInvalidated;
  *handle = reinterpret_cast<cuda::Graph>(graph.get());
  const gradrail::MutexLock lock(Machine::get().mutex);
  Machine::get().graphs[*handle] = std::move(graph);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuGraphDestroy(cuda::Graph graph) {
  const gradrail::MutexLock lock(Machine::get().mutex);
  return or_late_error(Machine::get().graphs.erase(graph) == 1 ? cuda::kSuccess : cuda::kInvalidValue);
}

GRADRAIL_SIMULATED Result cuGraphInstantiateWithFlags(cuda::GraphExec* executable, cuda::Graph handle,
                                                      unsigned long long flags) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (const Result wanted = Machine::get().configuration().instantiate_result; wanted != 0) return wanted;
  const gradrail::MutexLock lock(Machine::get().mutex);
  const std::shared_ptr<Graph> graph = find(Machine::get().graphs, handle);
  if (graph == nullptr || flags != 0) return cuda::kInvalidValue;
  auto copy = std::make_shared<Graph>(*graph);
  *executable = reinterpret_cast<cuda::GraphExec>(copy.get());
  Machine::get().executables[*executable] = std::move(copy);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuGraphLaunch(cuda::GraphExec executable, cuda::Stream stream) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  std::shared_ptr<Graph> graph;
  {
    const gradrail::MutexLock lock(Machine::get().mutex);
    graph = find(Machine::get().executables, executable);
  }
  if (graph == nullptr) return cuda::kInvalidValue;
  ++Machine::get().started;
  Machine::get().check_flush(stream_of(stream)->device());
  for (const std::function<void()>& operation : graph->operations) stream_of(stream)->enqueue(operation);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuGraphExecDestroy(cuda::GraphExec executable) {
  const gradrail::MutexLock lock(Machine::get().mutex);
  return or_late_error(Machine::get().executables.erase(executable) == 1 ? cuda::kSuccess : cuda::kInvalidValue);
}
