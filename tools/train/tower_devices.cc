#include "tools/train/tower_devices.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "launch/placement/gpu_choice.h"
#include "worker/models/workload.h"

namespace gradrail::tools {

TowerDevices::TowerDevices(const launch::HostPlan& plan, const TrainOptions& options)
    : demand_(launch::gpu_demand(options.start)), direct_(options.gpu_direct), checksums_(options.checksums) {
  for (const launch::UnitPlace& place : places_of(plan, options.start)) {
    towers_.push_back({.ordinal = place.gpu_ordinal, .why_cpu = plan.why_no_gpu});
    if (place.gpu_ordinal < 0 && plan.why_no_gpu.empty()) towers_.back().why_cpu = "no GPU remains for it";
  }
  const std::vector<topology::Gpu>& gpus = plan.machine.gpus;
  // hwloc saw a GPU that no tower uses: the user should know why.
  const bool idle = std::any_of(gpus.begin(), gpus.end(),
                                [](const topology::Gpu& gpu) { return gpu.vendor == topology::Vendor::nvidia; });
  if (!plan.why_no_gpu.empty() && options.start.why_no_gpu.empty()) {
    if (idle)
      log_warning("this machine has GPUs, but towers compute on CPUs: {}", plan.why_no_gpu);
    else  // a host without a GPU is no reason for a warning
      write_log(plan.gpu_driver_failed ? LogLevel::warn : LogLevel::info, "towers compute on CPUs: " + plan.why_no_gpu);
  }
  const auto on_cpu = std::count_if(towers_.begin(), towers_.end(), [](const Tower& t) { return t.ordinal < 0; });
  if (on_cpu == 0 || !plan.why_no_gpu.empty()) return;
  const auto with_gpu = towers_.size() - static_cast<size_t>(on_cpu);
  if (with_gpu == 0) {
    log_warning("towers compute on CPUs: no GPU remains for this worker");
  } else {
    log_warning("{} of {} towers have GPUs; the other towers compute on CPUs, and each step waits for them", with_gpu,
                towers_.size());
  }
}

absl::StatusOr<std::unique_ptr<gpu::Compute>> TowerDevices::open(size_t tower) {
  Tower& one = towers_[tower];
  if (one.ordinal < 0) return nullptr;
  absl::StatusOr<std::unique_ptr<gpu::Compute>> device = gpu::open_device(one.ordinal);
  if (!device.ok()) {
    GRADRAIL_RETURN_IF_ERROR(instead_of(tower, device.status()));
    return nullptr;
  }
  // A label marks a tower that computes on its GPU; instead_of() removes it again.
  one.label = (*device)->name();
  return device;
}

absl::Status TowerDevices::instead_of(size_t index, const absl::Status& why) {
  Tower& tower = towers_[index];
  tower.label.clear();
  // As TensorFlow's allow_soft_placement=False: a missing device is an error.
  if (!demand_.empty())
    return absl::Status(why.code(), fmt::format("{}: tower {}: {}", demand_, index, message_of(why)));
  tower.why_cpu = message_of(why);
  log_warning("tower {} computes on CPUs: {}", index, tower.why_cpu);
  return absl::OkStatus();
}

std::vector<std::string> TowerDevices::summary(const std::string& averaged_by) const {
  const bool planned = std::any_of(towers_.begin(), towers_.end(), [](const Tower& t) { return t.ordinal >= 0; });
  if (!planned) return {};
  std::vector<std::string> parts;
  for (size_t i = 0; i < towers_.size(); ++i) {
    const Tower& tower = towers_[i];
    parts.push_back(tower.label.empty() ? fmt::format("{} on CPUs ({})", i, tower.why_cpu)
                                        : fmt::format("{} on {}", i, tower.label));
  }
  if (towers_.size() > 1) parts.push_back("averaged by " + averaged_by);
  std::vector<std::string> lines = {fmt::format("Towers: {}", fmt::join(parts, ", "))};
  const bool on_gpu = std::any_of(towers_.begin(), towers_.end(), [](const Tower& t) { return !t.label.empty(); });
  if (on_gpu) {
    lines.push_back("GPU-Direct: " + way_);
  }
  return lines;
}

absl::StatusOr<DeviceBlock> TowerDevices::device_block(worker::Workload& workload) {
  const auto none = [&](const std::string& why) -> absl::StatusOr<DeviceBlock> {
    way_ = fmt::format("staged through pinned host memory ({})", why);
    if (!forbids_staging()) return DeviceBlock{};
    return absl::FailedPreconditionError(
        fmt::format("--gpu-direct {}: {}; auto and staged permit another path", direct_, why));
  };
  DeviceBlock block = workload.device_block();
  if (block.parameters == nullptr) {
    return none(towers_.size() > 1           ? "several towers, averaged by the host, have their gradient there"
                : towers_[0].why_cpu.empty() ? "the tower is not on a GPU"
                                             : "the tower is not on a GPU: " + towers_[0].why_cpu);
  }
  if (checksums_ && forbids_staging()) return none("--checksums are of bytes that pass through the host");
  block.ordinal = towers_[0].ordinal;
  return block;
}

std::vector<GpuTransfer> TowerDevices::ways() const {
  // A direct transfer never passes through the host, where checksums are computed.
  if (checksums_) return {};
  // In the order of preference: the first that works is taken.
  if (direct_ == "auto") return {GpuTransfer::ipc, GpuTransfer::dma_buf, GpuTransfer::peer_memory};
  for (const GpuTransfer way : {GpuTransfer::ipc, GpuTransfer::dma_buf, GpuTransfer::peer_memory}) {
    if (direct_ == gpu_transfer_name(way)) return {way};
  }
  return {};
}

void TowerDevices::decided(Client& client) {
  if (!client.device().is_used()) return;
  way_ = client.device().text();
  if (direct_ == "staged") {
    way_ += " (--gpu-direct staged)";
  } else if (checksums_) {
    way_ += " (--checksums are of bytes that pass through the host)";
  }
}

}  // namespace gradrail::tools
