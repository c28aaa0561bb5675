#include "bench/ranks.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "fmt/format.h"
#include "ps/cluster_spec.h"

namespace gradrail::bench {
namespace {

constexpr uint16_t kMeetPort = 29477;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<uint32_t> number(const char* name) {
  const std::string text = variable(name);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::StatusOr<Place> from_cluster(const Options& o) {
  const absl::StatusOr<ps::ClusterSpec> cluster =
      o.cluster.empty() ? ps::cluster_from_hosts(o.ps_hosts, o.worker_hosts) : ps::read_cluster_file(o.cluster);
  if (!cluster.ok()) return cluster.status();
  const absl::StatusOr<ps::TaskId> task = ps::resolve_task(*cluster, o.job_name, o.task_index);
  if (!task.ok()) return task.status();
  const auto servers = static_cast<uint32_t>(cluster->ps.size());
  const auto size = static_cast<uint32_t>(cluster->ps.size() + cluster->workers.size());
  const uint32_t rank = task->job == "ps" ? task->index : servers + task->index;
  if (rank >= size)
    return absl::InvalidArgumentError(
        fmt::format("--task_index {}: the cluster has {} workers", o.task_index, cluster->workers.size()));
  return Place{.rank = rank, .size = size, .servers = servers, .meet = cluster->ps.front(), .from = "the cluster"};
}

/// What the environment says; of size 1 where it says nothing.
absl::StatusOr<Place> from_launcher() {
  const auto at = [](const std::string& host) { return ps::to_string({.host = host, .port = kMeetPort}); };
  // The innermost first: mpirun and torchrun are started by srun, and what it says is still there.
  if (const auto size = number("WORLD_SIZE"), rank = number("RANK"); size && rank && *size > 1) {
    const std::string host = variable("MASTER_ADDR");
    return Place{.rank = *rank, .size = *size, .meet = host.empty() ? "" : at(host), .from = "RANK and WORLD_SIZE"};
  }
  if (const auto size = number("OMPI_COMM_WORLD_SIZE"), rank = number("OMPI_COMM_WORLD_RANK");
      size && rank && *size > 1) {
    const bool one_host = number("OMPI_COMM_WORLD_LOCAL_SIZE") == size;
    return Place{.rank = *rank, .size = *size, .meet = one_host ? at("127.0.0.1") : "", .from = "mpirun"};
  }
  // Of a step: a batch script has only those of its job, and is alone.
  if (const auto size = number("SLURM_STEP_NUM_TASKS"), rank = number("SLURM_PROCID"); size && rank && *size > 1) {
    const std::string nodes = variable("SLURM_STEP_NODELIST");
    return Place{.rank = *rank, .size = *size, .meet = nodes.empty() ? "" : at(first_host_of(nodes)), .from = "Slurm"};
  }
  return Place{};
}

}  // namespace

absl::StatusOr<Place> place_of(const Options& o) {
  if (!o.cluster.empty() || !o.ps_hosts.empty() || !o.worker_hosts.empty()) return from_cluster(o);
  if (!o.job_name.empty())
    return absl::InvalidArgumentError(fmt::format("--job_name {}: of which --cluster, or --ps_hosts?", o.job_name));
  absl::StatusOr<Place> place = from_launcher();
  if (place.ok() && place->size == 1 && !o.meet.empty())
    return absl::InvalidArgumentError(
        fmt::format("--meet {}: neither srun, mpirun nor torchrun has started this process", o.meet));
  if (!place.ok() || place->size == 1) return place;
  place->servers = o.servers;
  place->by_launcher = true;
  if (!o.meet.empty()) place->meet = o.meet;
  if (place->meet.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} does not say where rank 0 is: name its host with --meet HOST:PORT", place->from));
  }
  if (place->rank >= place->size || place->servers >= place->size) {
    return absl::InvalidArgumentError(fmt::format("rank {} of {} by {}, --ps {}: there have to be servers and workers",
                                                  place->rank, place->size, place->from, place->servers));
  }
  return place;
}

std::string first_host_of(const std::string& nodes) {
  const size_t bracket = nodes.find('['), comma = nodes.find(',');
  if (comma < bracket) return nodes.substr(0, comma);
  if (bracket == std::string::npos) return nodes;
  const size_t close = nodes.find(']', bracket);
  const std::string numbers = nodes.substr(bracket + 1, close - bracket - 1);
  const size_t next = close == std::string::npos ? close : nodes.find(',', close);
  const std::string behind = close == std::string::npos ? "" : nodes.substr(close + 1, next - close - 1);
  return nodes.substr(0, bracket) + numbers.substr(0, numbers.find_first_of("-,")) + behind;
}

}  // namespace gradrail::bench
