// Variables in the memory of the worker's GPU: whether all shards can map it, and copies to and from it.
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute.h"
#include "spdlog/spdlog.h"
#include "worker/client_impl.h"

namespace gradrail::worker {

absl::Status Client::Impl::weigh_device(const ps::proto::DescribeReply& reply, bool same_host, const std::string& ps) {
  a_shard_is_on_gpu_ = a_shard_is_on_gpu_ || reply.on_gpu();
  if (!on_device_) return absl::OkStatus();
  if (!same_host) return leave_device(fmt::format("{} is on another host", ps));
  if (!reply.on_gpu()) return leave_device(fmt::format("{} keeps its parameters in host memory (--ps_device)", ps));
  return absl::OkStatus();
}

absl::Status Client::Impl::leave_device(const std::string& why) {
  on_device_ = false;
  why_not_on_device_ = why;
  if (!options_.require_device) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("--gpu-direct ipc: {}", why));
}

absl::Status Client::Impl::to_device(const SharedMemory& from, float* to) {
  options_.device.device->upload(to, from.data(), from.bytes());
  return options_.device.device->finish();
}

absl::Status Client::Impl::fetch() {
  if (!on_device_) return absl::OkStatus();
  gpu::Compute& device = *options_.device.device;
  return device.wait(device.download(parameters_.data(), options_.device.parameters, parameters_.bytes()));
}

}  // namespace gradrail::worker
