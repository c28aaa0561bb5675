#include "gpu/reduce/tower_sum.h"

#include <set>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/reduce/tower_sum_host.h"
#include "gpu/reduce/tower_sum_nccl.h"

namespace gradrail::gpu {
namespace {

/// The GPUs of these towers, one for each tower, or the reason why NCCL cannot serve them.
absl::StatusOr<std::vector<DeviceCompute*>> one_gpu_each(absl::Span<Compute* const> towers) {
  std::vector<DeviceCompute*> devices;
  std::set<std::string> addresses;
  for (size_t i = 0; i < towers.size(); ++i) {
    auto* device = dynamic_cast<DeviceCompute*>(towers[i]);
    if (device == nullptr) {
      return absl::FailedPreconditionError(fmt::format("tower {} computes on the host", i));
    }
    // NCCL refuses a communicator with two ranks on one device.
    if (!addresses.insert(device->context()->device().pci_address).second) {
      return absl::FailedPreconditionError(fmt::format("two towers share {}", device->name()));
    }
    devices.push_back(device);
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<TowerSum>> by_nccl(absl::Span<Compute* const> towers, Duration answer_timeout) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<DeviceCompute*> devices, one_gpu_each(towers));
  GRADRAIL_ASSIGN_OR_RETURN(const NcclLibrary* const library, nccl_library());
  return NcclTowerSum::create(*library, devices, answer_timeout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TowerSum>> tower_sum(absl::Span<Compute* const> towers, const TowerSumOptions& options) {
  const bool worth_trying =
      options.reduce == Reduce::nccl || (options.reduce == Reduce::automatic && towers.size() > 1);
  if (worth_trying) {
    absl::StatusOr<std::unique_ptr<TowerSum>> sum = by_nccl(towers, options.answer_timeout);
    if (sum.ok()) return sum;
    if (options.reduce == Reduce::nccl) {
      return absl::FailedPreconditionError(
          fmt::format("gradients cannot be averaged by NCCL: {}", message_of(sum.status())));
    }
    log_info("towers' gradients are averaged by the host: {}", message_of(sum.status()));
  }
  return std::make_unique<HostTowerSum>(towers, options.answer_timeout);
}

}  // namespace gradrail::gpu
