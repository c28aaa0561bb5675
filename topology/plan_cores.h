#pragma once

#include <string>
#include <vector>

#include "topology/plan.h"
#include "topology/plan_pools.h"

namespace gradrail::topology::planning {

enum class Busy { compute, shard, progress };

/// One busy thread: the tower or shard it belongs to, and its seat: a core's `level`-th cpu (0: the core is its own)
/// somewhere in `pool`.
struct Grant {
  Busy busy = Busy::compute;
  size_t owner = 0;
  size_t pool = 0;
  size_t level = 0;
};

/// What the host's threads come to.
struct Crowd {
  int threads = 0;  ///< one for each shard, and one or two for each tower
  int others = 0;   ///< threads that work now and then
  int cores = 0;
  int cpus = 0;
  bool progress = false;  ///< towers have progress threads
  bool crowded() const { return threads + others > cpus; }
  bool siblings() const { return !crowded() && threads > cores; }
};
Crowd count_crowd(const std::vector<Pool>& pools, const Request& request, const Placement& placement);

/// Which pool each thread gets its core from: first one for everybody, near ones first, then what is left in turns.
std::vector<Grant> grant_cores(const std::vector<Pool>& pools, const Request& request, const Crowd& crowd,
                               const std::vector<Home>& towers, const std::vector<Home>& shards);

/// Which cores of its pool.
void seat(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Placement& placement);

/// More threads than cpus: everybody shares everything, or, where that is as fair, a process the cpus of one pool.
void share_all(const std::vector<Pool>& pools, const Crowd& crowd, Placement& placement);

}  // namespace gradrail::topology::planning
