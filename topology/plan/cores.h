#pragma once

#include <string>
#include <vector>

#include "topology/plan/plan.h"
#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

enum class ThreadRole { compute, shard, progress };

/// A busy thread: its tower or shard, and its cpu: the `level`-th cpu of a core (0: the core is its own) in `pool`.
struct Grant {
  ThreadRole role = ThreadRole::compute;
  size_t owner = 0;
  size_t pool = 0;
  size_t level = 0;
};

/// Number of threads and cores of the host.
struct ThreadDemand {
  int threads = 0;  ///< one for each shard, and one or two for each tower
  int others = 0;   ///< threads that work now and then
  int cores = 0;
  int cpus = 0;
  int siblings = 0;       ///< threads on a core that has a busy thread already; set after the cores are granted
  bool progress = false;  ///< towers have progress threads
  bool oversubscribed() const { return threads + others > cpus; }
};
ThreadDemand count_threads(const std::vector<Pool>& pools, const Request& request, const Placement& placement);

/// Chooses the pool for each thread's core: first one core for each unit, near pools first; then the remaining cores,
/// evenly. `towers` and `shards`: preferred places of each.
std::vector<Grant> grant_cores(const std::vector<Pool>& pools, const Request& request, const ThreadDemand& demand,
                               const std::vector<Locality>& towers, const std::vector<Locality>& shards);

/// Swaps the cpus of threads of different units, also with free cpus, as long as this brings threads nearer to
/// their places. The grants before are a good start: one unit after the other. `far_cores`: GPU towers may have cores
/// on other nodes.
void swap_cores(const std::vector<Pool>& pools, const std::vector<Locality>& towers,
                const std::vector<Locality>& shards, bool far_cores, std::vector<Grant>& grants);

/// Assigns the cores within each pool.
void assign_cores(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Placement& placement);

/// More threads than cpus: threads share the cpus of a pool, a package or the machine. The smallest one with about as
/// many threads for each cpu as elsewhere is taken.
void share_all(const std::vector<Pool>& pools, const ThreadDemand& demand, const std::vector<Locality>& towers,
               const std::vector<Locality>& shards, Placement& placement);

}  // namespace gradrail::topology::planning
