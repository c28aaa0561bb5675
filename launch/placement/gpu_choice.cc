#include "launch/placement/gpu_choice.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "topology/plan/available_resources.h"

namespace gradrail::launch {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

/// Its place stays unknown: -1 everywhere.
topology::Gpu unknown_place(const ProbedGpu& probed) {
  topology::Gpu gpu;
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  // A text that does not fit leaves zeros: the address is then unknown like the rest of the place.
  std::sscanf(probed.pci_address.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function);
  gpu.place.address = {domain, static_cast<uint8_t>(bus), static_cast<uint8_t>(device), static_cast<uint8_t>(function)};
  return gpu;
}

topology::Gpu as_planned(const topology::Machine& machine, const ProbedGpu& probed) {
  const auto at = std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const topology::Gpu& gpu) {
    return gpu.place.address.to_string() == probed.pci_address;
  });
  topology::Gpu gpu = at == machine.gpus.end() ? unknown_place(probed) : *at;
  // CUDA's number, not hwloc's: the task opens its GPU by it.
  gpu.index = probed.ordinal;
  gpu.name = fmt::format("cuda{}", probed.ordinal);
  gpu.vendor = topology::Vendor::nvidia;
  gpu.model = probed.name;
  return gpu;
}

/// "; gpu0: there is no code for AMD GPUs": those that the NVIDIA driver does not show.
std::string unsupported_gpus(const topology::Machine& machine) {
  std::string text;
  for (const topology::Gpu& gpu : machine.gpus) {
    if (gpu.vendor != topology::Vendor::nvidia)
      text += fmt::format("; {}: {}", gpu.name, topology::planning::why_unsupported(gpu.vendor));
  }
  return text;
}

absl::StatusOr<GpuChoice> none(const TaskOptions& options, std::string why) {
  const std::string flag = gpu_demand(options);
  // A ps uses no towers, so that these flags do not concern it.
  if (flag.empty() || options.task.job == "ps") return GpuChoice{.why_none = std::move(why)};
  return absl::FailedPreconditionError(
      fmt::format("{}: no GPU can be used: {}; without it towers compute on CPUs", flag, why));
}

// Only the texts for --log_device_placement change; the placement itself stays.
void log_why_on_cpu(const std::string& why, topology::TowerPlace& tower) {
  for (topology::Decision& decision : tower.decisions) {
    if (decision.what != "GPU") continue;
    decision.reason = why;
    for (topology::Rejected& rejected : decision.rejected) rejected.reason = why;
  }
}

void give(const topology::Machine& machine, int gpu, topology::TowerPlace& tower) {
  tower.gpu = gpu;
  for (topology::Decision& decision : tower.decisions) {
    if (decision.what != "GPU") continue;
    decision = {.what = "GPU",
                .chosen = machine.gpus[gpu].name,
                .reason = fmt::format("{} assigns it to this task", kVisible),
                .rejected = {}};
  }
}

}  // namespace

std::string gpu_demand(const TaskOptions& options) {
  if (options.no_soft_placement) return "--no-soft-placement";
  return options.gpus.empty() ? "" : fmt::format("--gpu {}", fmt::join(options.gpus, ","));
}

ProbedGpus probe_for(const TaskOptions& options) {
  if (options.why_no_gpu.empty()) return probe_gpus();
  return {.why_none = options.why_no_gpu};
}

absl::StatusOr<GpuChoice> choose_gpus(const TaskOptions& options, const ProbedGpus& probed,
                                      topology::Machine& machine) {
  if (probed.gpus.empty()) return none(options, probed.why_none + unsupported_gpus(machine));
  std::vector<topology::Gpu> gpus;
  for (const ProbedGpu& gpu : probed.gpus) gpus.push_back(as_planned(machine, gpu));
  // The plan must know what the driver shows: CUDA_VISIBLE_DEVICES can hide GPUs and change their numbers.
  machine.gpus = std::move(gpus);
  GpuChoice choice{.towers = options.no_soft_placement ? topology::Towers::gpu : topology::Towers::automatic};
  // In a local cluster all tasks inherit one value, and the plan of the host divides these GPUs.
  if (!options.local && options.task.job != "ps" && std::getenv(kVisible) != nullptr) {
    choice.own_count = static_cast<int>(machine.gpus.size());
    // The plan of this host must not divide GPUs that only this task sees; finish_choice() assigns them.
    choice.towers = topology::Towers::cpu;
  }
  return choice;
}

absl::Status finish_choice(const GpuChoice& choice, const TaskOptions& options, const topology::Machine& machine,
                           topology::Placement& placement) {
  for (topology::TowerPlace& tower : placement.towers) {
    const bool ours = tower.task_index == static_cast<int>(options.task.index);
    if (ours && tower.tower < choice.own_count) {
      give(machine, tower.tower, tower);
    } else if (ours && choice.own_count > 0 && options.no_soft_placement) {
      return absl::FailedPreconditionError(fmt::format("--no-soft-placement: no GPU for tower {}: {} shows {}",
                                                       tower.tower, kVisible, choice.own_count));
    } else if (!choice.why_none.empty()) {
      log_why_on_cpu(choice.why_none, tower);
    }
  }
  return absl::OkStatus();
}

}  // namespace gradrail::launch
