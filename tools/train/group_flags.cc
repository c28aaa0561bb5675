// --aggregators and --sum_group: gradients are summed in groups of workers (docs/aggregators.md).
#include <algorithm>
#include <string_view>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/cluster_spec.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

std::vector<std::string> aggregators_of(const TrainFlags& flags) {
  if (flags.aggregators.empty()) return {};
  return ps::parse_host_list(flags.aggregators).value_or(std::vector<std::string>());
}

absl::Status set_sum_group(TrainOptions& options) {
  TrainFlags& flags = options.flags;
  // Other modes ignore the job of the cluster description.
  const bool described = options.task.job == "worker" && options.mode.kind == ps::ModeKind::sync &&
                         flags.aggregators.empty() && !options.cluster.aggregators.empty();
  if (described) flags.aggregators = fmt::format("{}", fmt::join(options.cluster.aggregators, ","));
  const std::string_view flag = described                   ? "job 'aggregator' of the cluster description"
                                : flags.aggregators.empty() ? "--sum_group"
                                                            : "--aggregators";
  if (flags.aggregators.empty() && flags.sum_group == 0) return absl::OkStatus();
  if (trains_alone(options))
    return absl::InvalidArgumentError(fmt::format("{} --ps 0: without a ps there is nothing to sum for", flag));
  if (options.mode.kind != ps::ModeKind::sync)
    return absl::InvalidArgumentError(fmt::format("{} needs --mode sync, not {}", flag, flags.mode));
  if (flags.ps_device != "host")
    return absl::InvalidArgumentError(fmt::format("{} needs --ps_device host, not {}", flag, flags.ps_device));
  options.mode.sum_group = flags.sum_group;
  if (flags.sum_group == 0) {
    const size_t workers = std::max<size_t>(1, options.mode.worker_count);
    const absl::StatusOr<uint32_t> group = ps::sum_group_of(aggregators_of(flags).size(), workers);
    if (!group.ok())
      return absl::InvalidArgumentError(
          fmt::format("{}: {}; with --sum_group the rest are spare ones", flag, message_of(group.status())));
    options.mode.sum_group = *group;
  }
  return ps::check_sum_group(options.mode);
}

}  // namespace gradrail::tools
