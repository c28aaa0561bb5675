#include "gpu/compute/recording.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_memory.h"
#include "gpu/compute/stream_marks.h"

namespace gradrail::gpu {

absl::StatusOr<std::unique_ptr<Recording>> Recording::make(Compute& compute,
                                                           const std::function<void(Recording&)>& operations) {
  auto* const device = dynamic_cast<DeviceCompute*>(&compute);
  if (device == nullptr)
    return absl::FailedPreconditionError(fmt::format("{}: only a GPU records operations", compute.name()));
  if (!device->context()->device().graphs)
    return absl::FailedPreconditionError(fmt::format("{}: its driver has no graphs", device->name()));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<StreamFlags> flags, StreamFlags::create(device->context()));
  // An earlier error is not one of the recording.
  GRADRAIL_RETURN_IF_ERROR(device->finish());
  std::unique_ptr<Recording> recording(new Recording(*device, std::move(flags)));
  GRADRAIL_RETURN_IF_ERROR(recording->record(operations));
  return recording;
}

absl::Status Recording::record(const std::function<void(Recording&)>& operations) {
  const SharedContext& context = device_.context();
  const cuda::Stream stream = device_.stream().handle();
  context->make_current();
  GRADRAIL_RETURN_IF_ERROR(
      // Relaxed: what another thread or a library calls meanwhile does not end the recording.
      context->status(api().cuStreamBeginCapture_v2(stream, cuda::kStreamCaptureRelaxed), "beginning a recording"));
  operations(*this);
  cuda::Graph graph = nullptr;
  const cuda::Result ended = api().cuStreamEndCapture(stream, &graph);
  // The error of an operation is the cause of the one at the end.
  absl::Status status = device_.finish();
  status.Update(context->status(ended, "ending a recording"));
  if (status.ok()) {
    status = context->status(api().cuGraphInstantiateWithFlags(&graph_, graph, 0), "preparing a recording");
  }
  if (graph != nullptr) api().cuGraphDestroy(graph);
  return status;
}

Recording::~Recording() {
  device_.finish().IgnoreError();
  if (graph_ == nullptr || device_.context()->is_abandoned()) return;
  device_.context()->make_current();
  api().cuGraphExecDestroy(graph_);
}

void Recording::copy_to_host(void* to, const void* from, size_t bytes) {
  const cuda::Result copied = api().cuMemcpyAsync(address_of(to), address_of(from), bytes, device_.stream().handle());
  if (copied != cuda::kSuccess)
    device_.fail(device_.context()->status(copied, fmt::format("copying {} bytes from it", bytes)));
}

void Recording::signal() {
  const cuda::Result written = flags_->write(device_.stream(), points_++, 1);
  if (written != cuda::kSuccess) device_.fail(device_.context()->status(written, "marking a point"));
}

void Recording::replay() {
  for (size_t point = 0; point < points_; ++point) flags_->clear(point);
  device_.context()->make_current();
  const cuda::Result launched = api().cuGraphLaunch(graph_, device_.stream().handle());
  if (launched != cuda::kSuccess) device_.fail(device_.context()->status(launched, "starting recorded operations"));
  end_ = device_.download(nullptr, nullptr, 0);
}

bool Recording::has_reached(size_t point) {
  GRADRAIL_CHECK(point < points_);
  return flags_->read(point) != 0 || device_.is_done(end_);
}

absl::Status Recording::wait_for(size_t point) {
  for (WaitInTurns turns; !has_reached(point);) turns.turn();
  return flags_->read(point) != 0 ? absl::OkStatus() : wait();
}

absl::Status Recording::wait() { return device_.wait(end_); }

}  // namespace gradrail::gpu
