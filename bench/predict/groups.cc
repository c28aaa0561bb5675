#include "bench/predict/groups.h"

#include <cmath>

namespace gradrail::bench::predict {
namespace {

bool has_equal_workers(const Description& description) {
  const Cluster& cluster = description.cluster;
  return description.load.compute_sigma == 0 && cluster.loss == 0 && cluster.unfairness == 0 &&
         cluster.queue_kib == 0 && cluster.oversubscription <= 1;
}

}  // namespace

Description with_groups(const Description& description) {
  Description groups = description;
  Cluster& cluster = groups.cluster;
  Load& load = groups.load;
  // Each host has as many workers as before.
  const uint32_t count =
      (kSimulatedWorkers + cluster.workers_per_host - 1) / cluster.workers_per_host * cluster.workers_per_host;
  if (cluster.workers <= count || !has_equal_workers(description)) return description;
  const double each = static_cast<double>(cluster.workers) / count;
  Mode mode = load.mode;
  mode.worker_count = cluster.workers;
  const double slow = load.slow_workers / each, spared = mode.spared_count() / each;
  if (slow != std::floor(slow) || spared != std::floor(spared)) return description;
  groups.workers_each = each;
  cluster.ps_nic_gbit = (cluster.ps_nic_gbit > 0 ? cluster.ps_nic_gbit : cluster.nic_gbit) / each;
  cluster.workers = count;
  load.slow_workers = static_cast<uint32_t>(slow);
  if (load.mode.kind == ModeKind::quorum) load.mode.bound = count - static_cast<uint32_t>(spared);
  return groups;
}

}  // namespace gradrail::bench::predict
