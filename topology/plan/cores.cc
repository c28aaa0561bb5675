#include "topology/plan/cores.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace gradrail::topology::planning {
namespace {

struct Thread {
  ThreadRole role = ThreadRole::compute;
  size_t owner = 0;
  Locality locality;
  int stay = -1;  ///< a pool where its owner has cores already: rather a second one there than in yet another pool
  bool only_there = false;
};

/// The cpus that are still free. A core's first cpu is at level 0, its siblings are above. A thread at level 0 has the
/// core for itself until level 0 is full on all cores.
class FreeCores {
 public:
  explicit FreeCores(const std::vector<Pool>& pools) : pools_(pools) {
    for (size_t p = 0; p < pools.size(); ++p) {
      for (const Pool::UsableCore& core : pools[p].cores) {
        // Cores differ in their number of siblings, on hybrid processors and in cgroups.
        if (core.cpus.size() > free_.size()) free_.resize(core.cpus.size(), std::vector<int>(pools.size()));
        for (size_t level = 0; level < core.cpus.size(); ++level) ++free_[level][p];
      }
    }
  }

  size_t levels() const { return free_.size(); }

  /// Serves those of `threads` that fit: first cpus of cores before siblings, near cpus before far ones for all
  /// threads. So no far thread takes a cpu beside another thread. Removes the served threads.
  void serve(std::vector<Thread>& threads, size_t levels, std::vector<Grant>& grants) {
    for (size_t level = 0; level < levels; ++level) {
      // The distance is the outer loop of the threads: all near wishes are served before any far one.
      for (int away = 0; away <= kFarthest; ++away) {
        std::erase_if(threads, [&](const Thread& thread) {
          const int pool = best_pool(level, away, thread);
          if (pool < 0) return false;
          --free_[level][pool];
          grants.push_back({thread.role, thread.owner, static_cast<size_t>(pool), level});
          return true;
        });
      }
    }
  }

 private:
  int best_pool(size_t level, int away, const Thread& thread) const {
    const auto open = [&](int p) { return free_[level][p] > 0 && distance(pools_[p], thread.locality) == away; };
    if (thread.stay >= 0 && open(thread.stay)) return thread.stay;
    if (thread.only_there) return -1;
    // The roomiest; of equals the next neighbor in hwloc's order, where neighbors are near each other.
    const auto merit = [&](int p) { return std::pair(-free_[level][p], std::abs(p - thread.stay)); };
    int best = -1;
    for (int p = 0; p < static_cast<int>(pools_.size()); ++p)
      if (open(p) && (best < 0 || merit(p) < merit(best))) best = p;
    return best;
  }

  const std::vector<Pool>& pools_;
  std::vector<std::vector<int>> free_;  ///< [level][pool]
};

}  // namespace

ThreadDemand count_threads(const std::vector<Pool>& pools, const Request& request, const Placement& placement) {
  ThreadDemand demand{.others = request.other_threads, .progress = request.progress_threads};
  // A tower counts as one compute thread here: further cores are given from what is left.
  demand.threads = static_cast<int>(placement.shards.size() + placement.towers.size() * (demand.progress ? 2 : 1));
  for (const Pool& pool : pools) {
    demand.cores += static_cast<int>(pool.cores.size());
    demand.cpus += pool.cpus.count();
  }
  return demand;
}

std::vector<Grant> grant_cores(const std::vector<Pool>& pools, const Request& request, const ThreadDemand& demand,
                               const std::vector<Locality>& towers, const std::vector<Locality>& shards) {
  FreeCores free_cores(pools);
  std::vector<Grant> grants;
  std::vector<Thread> first;
  for (size_t t = 0; t < towers.size(); ++t) first.push_back({ThreadRole::compute, t, towers[t]});
  for (size_t s = 0; s < shards.size(); ++s) first.push_back({ThreadRole::shard, s, shards[s]});
  free_cores.serve(first, free_cores.levels(), grants);

  std::vector<Thread> progress;
  for (const Grant& grant : std::vector<Grant>(grants)) {
    if (!demand.progress || grant.role != ThreadRole::compute) continue;
    const Pool& pool = pools[grant.pool];
    // Near the core that the tower has got, not near its GPU: both threads share the caches.
    progress.push_back({ThreadRole::progress, grant.owner, {.numa_node = pool.numa_node, .package = pool.package}});
  }
  // The grants are in the order of distance. By owner, the plan does not depend on which tower was served first.
  std::sort(progress.begin(), progress.end(), [](const Thread& a, const Thread& b) { return a.owner < b.owner; });
  free_cores.serve(progress, free_cores.levels(), grants);

  std::vector<int> stay(towers.size(), -1);
  const auto remember = [&](size_t from) {
    for (; from < grants.size(); ++from)
      if (grants[from].role == ThreadRole::compute) stay[grants[from].owner] = static_cast<int>(grants[from].pool);
  };
  remember(0);
  // An upper bound of the rounds: the loop ends when no core is left.
  const int left = demand.cores - demand.threads;
  const int wanted = request.cores_per_tower == 0 ? left : request.cores_per_tower - 1;
  for (int round = 0; round < wanted; ++round) {
    std::vector<Thread> more;
    for (size_t t = 0; t < towers.size(); ++t) {
      // Extra cores far from the GPU would only copy through another node. Only an explicit number asks for them.
      const bool only_there = towers[t].feeds_gpu && request.cores_per_tower == 0;
      more.push_back({ThreadRole::compute, t, towers[t], stay[t], only_there});
    }
    const size_t before = grants.size();
    free_cores.serve(more, 1, grants);  // a sibling would slow the thread beside it: cores only
    // No tower got a core in this round, so that no later round gives one.
    if (grants.size() == before) break;
    remember(before);
  }
  return grants;
}

void share_all(const std::vector<Pool>& pools, const ThreadDemand& demand, Placement& placement) {
  CpuSet everything;
  for (const Pool& pool : pools) everything = everything | pool.cpus;
  // By process, for its threads talk to each other: ps and worker tasks are numbered apart.
  std::map<std::pair<Job, int>, int> threads;
  for (const TowerPlace& tower : placement.towers) threads[{Job::worker, tower.task_index}] += demand.progress ? 2 : 1;
  for (const ShardPlace& shard : placement.shards) threads[{Job::ps, shard.task_index}] += 1;

  std::vector<int> load(pools.size());
  std::map<std::pair<Job, int>, size_t> pool_of;
  for (const auto& [process, thread_count] : threads) {
    const int count = thread_count;  // clang 14 captures no binding
    const auto after = [&](size_t p) { return static_cast<double>(load[p] + count) / pools[p].cpus.count(); };
    size_t best = 0;
    for (size_t p = 1; p < pools.size(); ++p)
      // Greedy: each process goes to the pool with the least load per cpu after it. Ties go to the first pool.
      if (after(p) < after(best)) best = p;
    load[best] += count;
    pool_of[process] = best;
  }
  // A quarter more than the average is what nearness may cost.
  // Otherwise a full pool would slow its processes while cpus of other pools idle: then all share all cpus.
  bool fair = true;
  for (size_t p = 0; p < pools.size(); ++p)
    // load / cpus of the pool <= 5/4 · threads / cpus of the host, in integers: no rounding decides.
    fair = fair && int64_t{4} * load[p] * demand.cpus <= int64_t{5} * demand.threads * pools[p].cpus.count();
  const auto set_of = [&](Job job, int task) { return fair ? pools[pool_of[{job, task}]].cpus : everything; };
  const auto node_of = [&](Job job, int task) {
    return fair ? pools[pool_of[{job, task}]].numa_node : (pools.size() == 1 ? pools[0].numa_node : -1);
  };
  for (TowerPlace& tower : placement.towers) {
    tower.compute = set_of(Job::worker, tower.task_index);
    if (demand.progress) tower.progress = tower.compute;
    tower.numa_node = node_of(Job::worker, tower.task_index);
  }
  for (ShardPlace& shard : placement.shards) {
    shard.cpus = set_of(Job::ps, shard.task_index);
    shard.numa_node = node_of(Job::ps, shard.task_index);
  }
}

}  // namespace gradrail::topology::planning
