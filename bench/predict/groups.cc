#include "bench/predict/groups.h"

#include <cmath>

namespace gradrail::bench::predict {

Description with_groups(const Description& description) {
  Description groups = description;
  Cluster& cluster = groups.cluster;
  Load& load = groups.load;
  // Each host has as many workers as before.
  const uint32_t count =
      (kSimulatedWorkers + cluster.workers_per_host - 1) / cluster.workers_per_host * cluster.workers_per_host;
  if (cluster.workers <= count || load.compute_sigma > 0) return description;
  const double each = static_cast<double>(cluster.workers) / count;
  Mode mode = load.mode;
  mode.worker_count = cluster.workers;
  const double spared = mode.spared_count() / each;
  if (spared != std::floor(spared)) return description;
  groups.workers_each = each;
  cluster.workers = count;
  if (load.mode.kind == ModeKind::quorum) load.mode.bound = count - static_cast<uint32_t>(spared);
  return groups;
}

}  // namespace gradrail::bench::predict
