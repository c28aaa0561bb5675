#include "tools/tower_devices.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gpu/ipc.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/models/workload.h"

namespace gradrail::tools {

TowerDevices::TowerDevices(const HostPlan& plan, const TrainOptions& options)
    : soft_(!options.flags.no_soft_placement), direct_(options.flags.gpu_direct), checksums_(options.flags.checksums) {
  for (const UnitPlace& place : places_of(plan, options)) {
    towers_.push_back({.ordinal = place.gpu_ordinal, .why_cpu = plan.why_no_gpu});
    if (place.gpu_ordinal < 0 && plan.why_no_gpu.empty()) towers_.back().why_cpu = "no GPU was left for it";
  }
  const std::vector<topology::Gpu>& gpus = plan.machine.gpus;
  const bool idle = std::any_of(gpus.begin(), gpus.end(),
                                [](const topology::Gpu& gpu) { return gpu.vendor == topology::Vendor::nvidia; });
  if (idle && !plan.why_no_gpu.empty() && worker::computes_on_devices(options.flags.model)) {
    spdlog::warn("this machine has GPUs, but towers compute on CPUs: {}", plan.why_no_gpu);
  }
  const auto on_cpu = std::count_if(towers_.begin(), towers_.end(), [](const Tower& t) { return t.ordinal < 0; });
  if (on_cpu == 0 || !plan.why_no_gpu.empty()) return;
  spdlog::warn("there are GPUs for {} of {} towers; the others compute on CPUs, and each step waits for them",
               towers_.size() - static_cast<size_t>(on_cpu), towers_.size());
}

absl::StatusOr<std::unique_ptr<gpu::Compute>> TowerDevices::open(size_t tower) {
  Tower& one = towers_[tower];
  if (one.ordinal < 0) return nullptr;
  absl::StatusOr<std::unique_ptr<gpu::Compute>> device = gpu::open_device(one.ordinal);
  if (!device.ok()) {
    GRADRAIL_RETURN_IF_ERROR(instead_of(tower, device.status()));
    return nullptr;
  }
  one.label = (*device)->name();
  return device;
}

absl::Status TowerDevices::instead_of(size_t index, const absl::Status& why) {
  Tower& tower = towers_[index];
  tower.label.clear();
  if (!soft_) {
    return absl::Status(why.code(), fmt::format("--no-soft-placement: tower {}: {}", index, message_of(why)));
  }
  tower.why_cpu = message_of(why);
  spdlog::warn("tower {} computes on CPUs: {}", index, tower.why_cpu);
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

absl::StatusOr<worker::DeviceMemory> TowerDevices::exported(worker::Workload& workload) {
  const bool forced = direct_ == "ipc";
  if (!forced && direct_ != "auto") return worker::DeviceMemory{};
  const auto none = [&](const std::string& why) -> absl::StatusOr<worker::DeviceMemory> {
    way_ = fmt::format("staged through pinned host memory ({})", why);
    if (!forced) return worker::DeviceMemory{};
    return absl::FailedPreconditionError(fmt::format("--gpu-direct ipc: {}", why));
  };
  if (checksums_) return none("--checksums are of bytes that pass through the host");
  const worker::DeviceBlock block = workload.device_block();
  if (block.device == nullptr) {
    return none(towers_.size() > 1 ? "several towers share a gradient" : "the tower is not on a GPU");
  }
  absl::StatusOr<std::string> key = gpu::export_memory(*block.device, block.parameters, block.bytes);
  if (!key.ok()) return none(std::string(message_of(key.status())));
  return worker::DeviceMemory{
      .device = block.device, .parameters = block.parameters, .gradients = block.gradients, .key = *std::move(key)};
}

void TowerDevices::decided(const worker::Client& client) {
  if (client.on_device()) {
    way_ = "ipc (the parameter server's GPU reads gradients and stores parameters in this GPU's memory)";
  } else if (direct_ == "staged") {
    way_ = "staged through pinned host memory (--gpu-direct staged)";
  } else if (!client.why_not_on_device().empty()) {
    way_ = fmt::format("staged through pinned host memory ({}; no transport here takes GPU memory directly)",
                       client.why_not_on_device());
  }
}

absl::Status check_gpu_direct(const TrainOptions& options) {
  const std::string& word = options.flags.gpu_direct;
  if (word == "auto" || word == "staged" || word == "ipc") return absl::OkStatus();  // ipc: told when joining
  const GpuDirect way = word == name_of(GpuDirect::dma_buf) ? GpuDirect::dma_buf : GpuDirect::peer_memory;
  std::vector<std::string> reasons;
  for (const std::string& name : options.transports) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    if (!found.ok()) continue;
    const absl::StatusOr<std::unique_ptr<transport::Context>> context = (*found)->open({});
    if (!context.ok()) {
      reasons.push_back(fmt::format("{} cannot be used", name));
    } else if (const transport::GpuWays ways = (*context)->capabilities().gpu; !ways.takes(way)) {
      reasons.push_back(fmt::format("{} {}", name, ways.why_not(way)));
    } else {
      reasons.push_back(fmt::format("{} could, but models do not hand it GPU memory yet", name));
    }
  }
  return absl::FailedPreconditionError(fmt::format(
      "--gpu-direct {}: {}; leave it at auto, which stages gradients through pinned host memory", word,
      reasons.empty() ? "no transport takes GPU memory directly" : fmt::format("{}", fmt::join(reasons, ", "))));
}

}  // namespace gradrail::tools
