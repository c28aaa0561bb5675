#include <algorithm>
#include <set>

#include "topology/plan_cores.h"

namespace gradrail::topology::planning {
namespace {

struct Sitting {
  Busy busy;
  size_t owner;
};

void take(Placement& placement, const Sitting& who, int cpu) {
  switch (who.busy) {
    case Busy::compute:
      placement.towers[who.owner].compute.insert(cpu);
      return;
    case Busy::progress:
      placement.towers[who.owner].progress.insert(cpu);
      return;
    case Busy::shard:
      placement.shards[who.owner].cpus.insert(cpu);
      return;
  }
}

/// The first grant of each tower, then of each shard, then second ones …: in a pool of unequal cores everybody gets a
/// fast one before anybody gets two; progress threads, for which a slow one will do, last.
std::vector<Sitting> in_turns(const std::vector<Grant>& grants) {
  std::vector<Sitting> line;
  for (const Busy busy : {Busy::compute, Busy::shard, Busy::compute, Busy::progress}) {
    const bool rest = !line.empty() && busy == Busy::compute;
    std::set<size_t> seen;
    for (const Grant& grant : grants) {
      if (grant.level != 0 || grant.busy != busy) continue;
      const bool first = seen.insert(grant.owner).second;
      if (busy != Busy::compute || first != rest) line.push_back({grant.busy, grant.owner});
    }
  }
  return line;
}

/// Towers from the front, each with its cores side by side (neighbours share caches) and its progress thread next to
/// them; shards from the back, away from towers.
std::vector<Sitting> side_by_side(const std::vector<Grant>& grants) {
  std::vector<Grant> line;
  for (const Grant& grant : grants)
    if (grant.level == 0) line.push_back(grant);
  std::stable_sort(line.begin(), line.end(), [](const Grant& a, const Grant& b) {
    const bool shard_a = a.busy == Busy::shard, shard_b = b.busy == Busy::shard;
    if (shard_a != shard_b) return shard_b;
    if (a.owner != b.owner) return shard_a ? a.owner > b.owner : a.owner < b.owner;
    return a.busy < b.busy;
  });
  std::vector<Sitting> sitting;
  sitting.reserve(line.size());
  for (const Grant& grant : line) sitting.push_back({grant.busy, grant.owner});
  return sitting;
}

class Table {
 public:
  Table(const Pool& pool, Placement& placement) : pool_(pool), placement_(placement), sitting_(pool.cores.size()) {}

  void sit(size_t core, const Sitting& who) {
    take(placement_, who, pool_.cores[core].cpus[sitting_[core].size()]);
    sitting_[core].push_back(who);
  }

  /// Siblings: a progress thread beside its own tower's compute thread, with which it shares data; others where there
  /// is a seat.
  void sit_beside(const Grant& grant) {
    size_t best = sitting_.size();
    for (size_t core = 0; core < sitting_.size(); ++core) {
      if (sitting_[core].size() != grant.level || pool_.cores[core].cpus.size() <= grant.level) continue;
      const bool own = std::any_of(sitting_[core].begin(), sitting_[core].end(), [&](const Sitting& other) {
        return grant.busy == Busy::progress && other.busy == Busy::compute && other.owner == grant.owner;
      });
      if (own || best == sitting_.size()) best = core;
      if (own) break;
    }
    sit(best, {grant.busy, grant.owner});
  }

 private:
  const Pool& pool_;
  Placement& placement_;
  std::vector<std::vector<Sitting>> sitting_;
};

void seat_pool(const Pool& pool, std::vector<Grant> grants, Placement& placement) {
  Table table(pool, placement);
  const std::vector<Sitting> line = pool.hybrid ? in_turns(grants) : side_by_side(grants);
  const size_t gap = pool.cores.size() - line.size();
  size_t core = 0;
  bool shards_begun = false;
  for (const Sitting& who : line) {
    // What stays free lies between towers and shards, or before the slow cores at the end.
    const bool at_end = pool.hybrid ? who.busy == Busy::progress : who.busy == Busy::shard;
    if (at_end && !shards_begun) {
      core += gap;
      shards_begun = true;
    }
    table.sit(core++, who);
  }
  std::stable_sort(grants.begin(), grants.end(), [](const Grant& a, const Grant& b) {
    if (a.level != b.level) return a.level < b.level;
    return (a.busy == Busy::progress) > (b.busy == Busy::progress);
  });
  // Who is at home beside a thread of its own goes first, lest another takes that seat.
  for (const Grant& grant : grants)
    if (grant.level > 0) table.sit_beside(grant);
}

}  // namespace

void seat(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Placement& placement) {
  for (size_t p = 0; p < pools.size(); ++p) {
    std::vector<Grant> here;
    for (const Grant& grant : grants)
      if (grant.pool == p) here.push_back(grant);
    seat_pool(pools[p], std::move(here), placement);
  }
}

}  // namespace gradrail::topology::planning
