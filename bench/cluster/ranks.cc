#include "bench/cluster/ranks.h"

#include <optional>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/launcher/launcher.h"

namespace gradrail::bench {
namespace {

absl::StatusOr<Place> from_cluster(const ClusterOptions& o) {
  GRADRAIL_ASSIGN_OR_RETURN(const ClusterSpec cluster, o.cluster.empty()
                                                           ? cluster_from_hosts(o.ps_hosts, o.worker_hosts)
                                                           : read_cluster_file(o.cluster));
  if (cluster.sparse)
    return absl::InvalidArgumentError(
        fmt::format("--cluster {}: leaves out workers; a measurement needs all of them", o.cluster));
  GRADRAIL_ASSIGN_OR_RETURN(const TaskId task, resolve_task(cluster, o.job_name, o.task_index));
  const auto servers = static_cast<uint32_t>(cluster.ps.size());
  const auto size = static_cast<uint32_t>(cluster.ps.size() + cluster.workers.size());
  // Servers have the first ranks, so rank 0 is at an address that the cluster states.
  const uint32_t rank = task.job == "ps" ? task.index : servers + task.index;
  if (rank >= size)
    return absl::InvalidArgumentError(
        fmt::format("--task_index {}: the cluster has {} workers", o.task_index, cluster.workers.size()));
  return Place{.rank = rank, .size = size, .servers = servers, .rendezvous = cluster.ps.front(), .from = "the cluster"};
}

/// The place in the environment; size 1 where it has none.
absl::StatusOr<Place> from_launcher() {
  const absl::StatusOr<std::optional<launch::Launch>> launch = launch::read_launcher();
  if (!launch.ok()) return launch.status();
  if (!launch->has_value()) return Place{};
  return Place{
      .rank = (*launch)->rank, .size = (*launch)->size, .rendezvous = (*launch)->rendezvous, .from = (*launch)->job};
}

}  // namespace

void ClusterOptions::add_flags(CLI::App& app) {
  app.option_defaults()->group("Cluster");
  app.add_option("--cluster", cluster, "cluster.json: one process per task, each with this command line");
  app.add_option("--ps_hosts,--ps-hosts", ps_hosts, "the parameter servers of --cluster as a list, host:port,...")
      ->transform(accepted_by(parse_host_list));
  app.add_option("--worker_hosts,--worker-hosts", worker_hosts, "workers of --ps_hosts")
      ->transform(accepted_by(parse_host_list));
  app.add_option("--job_name,--job-name", job_name, "job of this process: ps or worker")
      ->check(CLI::IsMember({"ps", "worker", "chief", "master"}));
  app.add_option("--task_index,--task-index", task_index, "index of this task in --job_name, from 0")
      ->transform(NumberIn<int64_t>(0));
  app.add_option("--rendezvous", rendezvous.text,
                 "under mpirun: tcp://HOST:PORT of rank 0, which coordinates the ranks")
      ->transform(parsed_into(rendezvous, launch::parse_tcp_rendezvous));
  app.add_option("--ps", servers,
                 "under srun, mpirun, torchrun: number of ranks that are servers; the others are workers")
      ->transform(NumberIn(1u, 64u))
      ->capture_default_str();
}

absl::StatusOr<Place> place_of(const ClusterOptions& o) {
  if (!o.cluster.empty() || !o.ps_hosts.empty() || !o.worker_hosts.empty()) return from_cluster(o);
  if (!o.job_name.empty())
    return absl::InvalidArgumentError(fmt::format("--job_name {}: of which --cluster, or --ps_hosts?", o.job_name));
  absl::StatusOr<Place> place = from_launcher();
  if (place.ok() && place->size == 1 && o.rendezvous.is_given())
    return absl::InvalidArgumentError(
        fmt::format("--rendezvous {}: neither srun, mpirun nor torchrun has started this process", o.rendezvous.text));
  if (!place.ok() || place->size == 1) return place;
  place->servers = o.servers;
  place->by_launcher = true;
  if (o.rendezvous.is_given()) place->rendezvous = o.rendezvous.first_task;
  if (place->rendezvous.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} does not say where rank 0 is: name its host with --rendezvous tcp://HOST:PORT", place->from));
  }
  if (place->rank >= place->size || place->servers >= place->size) {
    return absl::InvalidArgumentError(fmt::format("rank {} of {} by {}, --ps {}: there have to be servers and workers",
                                                  place->rank, place->size, place->from, place->servers));
  }
  return place;
}

}  // namespace gradrail::bench
