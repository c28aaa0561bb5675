#pragma once

#include <string>
#include <vector>

#include "topology/plan/plan.h"
#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

enum class ThreadRole { compute, shard, progress };

/// One busy thread: its tower or shard, and its cpu: the `level`-th cpu of a core (0: the core is its own) in `pool`.
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
  bool progress = false;  ///< towers have progress threads
  bool oversubscribed() const { return threads + others > cpus; }
  /// Without `others`: they need a cpu now and then, but no core of their own.
  bool siblings() const { return !oversubscribed() && threads > cores; }
};
ThreadDemand count_threads(const std::vector<Pool>& pools, const Request& request, const Placement& placement);

/// Chooses the pool for each thread's core: first one core for each unit, near pools first; then the remaining cores in
/// turns.
std::vector<Grant> grant_cores(const std::vector<Pool>& pools, const Request& request, const ThreadDemand& demand,
                               const std::vector<Locality>& towers, const std::vector<Locality>& shards);

/// Which cores of its pool.
void assign_cores(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Placement& placement);

/// More threads than cpus: all threads share all cpus. Where it is equally fair, a process shares the cpus of one pool.
void share_all(const std::vector<Pool>& pools, const ThreadDemand& demand, Placement& placement);

}  // namespace gradrail::topology::planning
