#include <algorithm>
#include <set>

#include "base/check.h"
#include "topology/plan/cores.h"

namespace gradrail::topology::planning {
namespace {

struct CoreAssignment {
  ThreadRole role;
  size_t owner;
};

void take(Placement& placement, const CoreAssignment& thread, int cpu) {
  switch (thread.role) {
    case ThreadRole::compute:
      placement.towers[thread.owner].compute.insert(cpu);
      return;
    case ThreadRole::progress:
      placement.towers[thread.owner].progress.insert(cpu);
      return;
    case ThreadRole::shard:
      placement.shards[thread.owner].cpus.insert(cpu);
      return;
  }
}

/// Takes the first grant of each tower, then of each shard, then second grants, and so on. Each unit in a pool of
/// unequal cores gets one fast core before any unit gets two. Progress threads are last, because a slow core is
/// sufficient for them.
std::vector<CoreAssignment> in_turns(const std::vector<Grant>& grants) {
  std::vector<CoreAssignment> line;
  // Level 0 only: siblings are assigned by assign_beside().
  for (const ThreadRole role : {ThreadRole::compute, ThreadRole::shard, ThreadRole::compute, ThreadRole::progress}) {
    // The role occurs twice: for the first core of each tower, and for the others.
    const bool rest = !line.empty() && role == ThreadRole::compute;
    std::set<size_t> seen;
    for (const Grant& grant : grants) {
      if (grant.level != 0 || grant.role != role) continue;
      const bool first = seen.insert(grant.owner).second;
      if (role != ThreadRole::compute || first != rest) line.push_back({grant.role, grant.owner});
    }
  }
  return line;
}

/// Towers from the front: each has adjacent cores (neighbors share caches) with its progress thread next to them.
/// Shards from the back, away from towers.
std::vector<CoreAssignment> side_by_side(const std::vector<Grant>& grants) {
  std::vector<Grant> line;
  for (const Grant& grant : grants)
    if (grant.level == 0) line.push_back(grant);
  std::stable_sort(line.begin(), line.end(), [](const Grant& a, const Grant& b) {
    const bool shard_a = a.role == ThreadRole::shard, shard_b = b.role == ThreadRole::shard;
    // Shards last; they are in reverse order, so that shard 0 has the last core of the pool.
    if (shard_a != shard_b) return shard_b;
    if (a.owner != b.owner) return shard_a ? a.owner > b.owner : a.owner < b.owner;
    return a.role < b.role;
  });
  std::vector<CoreAssignment> assignments;
  assignments.reserve(line.size());
  for (const Grant& grant : line) assignments.push_back({grant.role, grant.owner});
  return assignments;
}

class Table {
 public:
  Table(const Pool& pool, Placement& placement) : pool_(pool), placement_(placement), assignments_(pool.cores.size()) {}

  void assign(size_t core, const CoreAssignment& thread) {
    // Invariant: a core has at most as many threads as cpus, and its first thread has its first cpu.
    GRADRAIL_CHECK(core < assignments_.size() && assignments_[core].size() < pool_.cores[core].cpus.size());
    take(placement_, thread, pool_.cores[core].cpus[assignments_[core].size()]);
    assignments_[core].push_back(thread);
  }

  /// Siblings: a progress thread runs beside its own tower's compute thread, with which it shares data. Others use any
  /// free sibling.
  void assign_beside(const Grant& grant) {
    size_t best = assignments_.size();
    for (size_t core = 0; core < assignments_.size(); ++core) {
      // Exactly `level` threads: FreeCores::serve() fills a level on all cores before it grants the next one.
      if (assignments_[core].size() != grant.level || pool_.cores[core].cpus.size() <= grant.level) continue;
      const bool own =
          std::any_of(assignments_[core].begin(), assignments_[core].end(), [&](const CoreAssignment& other) {
            return grant.role == ThreadRole::progress && other.role == ThreadRole::compute &&
                   other.owner == grant.owner;
          });
      if (own || best == assignments_.size()) best = core;
      if (own) break;
    }
    assign(best, {grant.role, grant.owner});
  }

 private:
  const Pool& pool_;
  Placement& placement_;
  std::vector<std::vector<CoreAssignment>> assignments_;
};

void assign_pool(const Pool& pool, std::vector<Grant> grants, Placement& placement) {
  Table table(pool, placement);
  const std::vector<CoreAssignment> line = pool.hybrid ? in_turns(grants) : side_by_side(grants);
  GRADRAIL_CHECK(line.size() <= pool.cores.size());  // grant_cores() grants free cpus only
  const size_t gap = pool.cores.size() - line.size();
  size_t core = 0;
  bool shards_begun = false;
  for (const CoreAssignment& thread : line) {
    // Free cores are between towers and shards, or before the slow cores at the end.
    const bool at_end = pool.hybrid ? thread.role == ThreadRole::progress : thread.role == ThreadRole::shard;
    if (at_end && !shards_begun) {
      core += gap;
      shards_begun = true;
    }
    table.assign(core++, thread);
  }
  std::stable_sort(grants.begin(), grants.end(), [](const Grant& a, const Grant& b) {
    if (a.level != b.level) return a.level < b.level;
    return (a.role == ThreadRole::progress) > (b.role == ThreadRole::progress);
  });
  // A thread that belongs beside another thread of its unit is first, because another thread could take that cpu.
  for (const Grant& grant : grants)
    if (grant.level > 0) table.assign_beside(grant);
}

}  // namespace

void assign_cores(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Placement& placement) {
  for (size_t p = 0; p < pools.size(); ++p) {
    std::vector<Grant> here;
    for (const Grant& grant : grants)
      if (grant.pool == p) here.push_back(grant);
    assign_pool(pools[p], std::move(here), placement);
  }
}

}  // namespace gradrail::topology::planning
