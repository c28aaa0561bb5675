#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "topology/plan/cores.h"

namespace gradrail::topology::planning {
namespace {

/// Distances of the threads of a unit from their places; less is better. Compared in this order.
struct Farness {
  int crossing = 0;         ///< GPU towers that compute outside of the GPU's package
  int helper_crossing = 0;  ///< progress threads likewise
  int siblings = 0;         ///< busy threads that their cores have already
  int from_gpu = 0;         ///< distances
  int from_tower = 0;       ///< distance of progress threads
  int from_nic = 0;         ///< distance of shards
  int packages = 0;         ///< packages of CPU towers
  int pools = 0;            ///< likewise
  auto operator<=>(const Farness&) const = default;

  void add(const Farness& other) {
    crossing += other.crossing;
    helper_crossing += other.helper_crossing;
    siblings += other.siblings;
    from_gpu += other.from_gpu;
    from_tower += other.from_tower;
    from_nic += other.from_nic;
    packages += other.packages;
    pools += other.pools;
  }
};

/// The threads of one tower or shard, or the free cpus.
using Owner = std::pair<bool, size_t>;
constexpr size_t kFree = SIZE_MAX;
/// Maximum number of swaps that improve_by_two() tries. The plans of small hosts need fewer.
constexpr size_t kMostTries = 5'000;
Owner owner_of(const Grant& grant) { return {grant.role == ThreadRole::shard, grant.owner}; }

/// Swaps of cpus between threads, and with free cpus. Each one lowers the sum of Farness.
class CoreSwaps {
 public:
  CoreSwaps(const std::vector<Pool>& pools, const std::vector<Locality>& towers, const std::vector<Locality>& shards,
            bool far_cores, const std::vector<Grant>& grants)
      : pools_(pools), towers_(towers), shards_(shards), far_cores_(far_cores), grants_(grants) {
    for (size_t g = 0; g < grants.size(); ++g) by_owner_[owner_of(grants[g]).first].resize(owners(grants[g]));
    for (size_t g = 0; g < grants.size(); ++g) by_owner_[owner_of(grants[g]).first][grants[g].owner].push_back(g);
    add_free();
  }

  /// Whether two threads have swapped their cpus.
  bool improve() {
    for (size_t a = 0; a < grants_.size(); ++a) {
      if (!is_far(a)) continue;
      for (size_t b = 0; b < grants_.size(); ++b)
        if (may_swap(a, b) && try_all({{a, b}})) return true;
    }
    return false;
  }

  /// Whether two swaps together have made the plan better: three threads in a circle, or two threads of one owner.
  /// There are many: the search ends after kMostTries.
  bool improve_by_two() {
    for (size_t a = 0; a < grants_.size(); ++a) {
      if (!is_far(a)) continue;
      for (size_t b = 0; b < grants_.size(); ++b) {
        if (!may_swap(a, b)) continue;
        for (size_t c = 0; c < grants_.size(); ++c) {
          if (c == a || c == b) continue;
          if (tries_ > kMostTries) return false;
          if (may_swap(c, b) && try_all({{a, b}, {c, b}})) return true;
          if (owner_of(grants_[c]) != owner_of(grants_[a])) continue;
          for (size_t d = 0; d < grants_.size(); ++d)
            if (d != a && d != b && may_swap(c, d) && try_all({{a, b}, {c, d}})) return true;
        }
      }
    }
    return false;
  }

  /// Returns the grants without the free cpus.
  std::vector<Grant> take_grants() {
    std::erase_if(grants_, [](const Grant& grant) { return grant.owner == kFree; });
    return std::move(grants_);
  }

 private:
  size_t owners(const Grant& grant) const { return grant.role == ThreadRole::shard ? shards_.size() : towers_.size(); }

  /// Adds one free cpu of each pool and level: others of the same kind are equal.
  void add_free() {
    std::map<std::pair<size_t, size_t>, int> left;
    for (size_t p = 0; p < pools_.size(); ++p) {
      for (const Pool::UsableCore& core : pools_[p].cores)
        for (size_t level = 0; level < core.cpus.size(); ++level) ++left[{p, level}];
    }
    for (const Grant& grant : grants_) --left[{grant.pool, grant.level}];
    for (const auto& [place, count] : left)
      if (count > 0) grants_.push_back({ThreadRole::compute, kFree, place.first, place.second});
  }

  bool is_far(size_t g) const { return is_movable(g) && farness(owner_of(grants_[g])) != Farness{}; }

  bool may_swap(size_t a, size_t b) const {
    const Grant &one = grants_[a], &other = grants_[b];
    return std::pair(one.pool, one.level) != std::pair(other.pool, other.level) && owner_of(one) != owner_of(other) &&
           is_movable(a) && is_movable(b);
  }

  /// Whether a grant may move. The further cores of a GPU tower stay together, unless the request has more than there
  /// are beside the GPU.
  bool is_movable(size_t g) const {
    const Grant& grant = grants_[g];
    if (grant.owner == kFree) return true;
    if (far_cores_ || grant.role != ThreadRole::compute || !towers_[grant.owner].feeds_gpu) return true;
    const std::vector<size_t>& threads = by_owner_[0][grant.owner];
    return std::count_if(threads.begin(), threads.end(),
                         [&](size_t other) { return grants_[other].role == ThreadRole::compute; }) == 1;
  }

  using Pairs = std::initializer_list<std::pair<size_t, size_t>>;

  bool try_all(Pairs pairs) {
    ++tries_;
    const Farness before = sum(pairs);
    for (const auto& [a, b] : pairs) swap(a, b);
    if (sum(pairs) < before) return true;
    for (auto pair = std::rbegin(pairs); pair != std::rend(pairs); ++pair) swap(pair->first, pair->second);
    return false;
  }

  void swap(size_t a, size_t b) {
    std::swap(grants_[a].pool, grants_[b].pool);
    std::swap(grants_[a].level, grants_[b].level);
  }

  Farness sum(Pairs pairs) const {
    std::array<Owner, 4> owners;  // owners of at most two pairs; each one counts once
    auto end = owners.begin();
    Farness sum;
    for (const auto& [a, b] : pairs) {
      for (const Owner& owner : {owner_of(grants_[a]), owner_of(grants_[b])}) {
        if (std::find(owners.begin(), end, owner) != end) continue;
        *end++ = owner;
        sum.add(farness(owner));
      }
    }
    return sum;
  }

  Farness farness(const Owner& owner) const {
    if (owner.second == kFree) return {};
    const std::vector<size_t>& threads = by_owner_[owner.first][owner.second];
    Farness farness;
    if (owner.first) {
      farness.from_nic = distance(pools_[grants_[threads[0]].pool], shards_[owner.second]);
    } else {
      const Locality& place = towers_[owner.second];
      farness = place.feeds_gpu ? from_gpu(threads, place) : spread(threads);
    }
    for (const size_t g : threads) farness.siblings += static_cast<int>(grants_[g].level);
    return farness;
  }

  Farness from_gpu(const std::vector<size_t>& threads, const Locality& gpu) const {
    size_t nearest = pools_.size(), helper = pools_.size();
    for (const size_t g : threads) {
      const size_t pool = grants_[g].pool;
      if (grants_[g].role == ThreadRole::progress) {
        helper = pool;
      } else if (nearest == pools_.size() || distance(pools_[pool], gpu) < distance(pools_[nearest], gpu)) {
        nearest = pool;
      }
    }
    const int away = distance(pools_[nearest], gpu);
    Farness farness{.crossing = away == kFarthest, .from_gpu = away};
    if (helper == pools_.size()) return farness;
    const int helper_away = distance(pools_[helper], gpu);
    farness.helper_crossing = helper_away == kFarthest;
    farness.from_gpu += helper_away;
    farness.from_tower = distance(pools_[helper], {pools_[nearest].numa_node, pools_[nearest].package});
    return farness;
  }

  Farness spread(const std::vector<size_t>& threads) const {
    std::set<size_t> pools;
    std::set<int> packages;
    for (const size_t g : threads) {
      pools.insert(grants_[g].pool);
      packages.insert(pools_[grants_[g].pool].package);
    }
    return {.packages = static_cast<int>(packages.size()) - 1, .pools = static_cast<int>(pools.size()) - 1};
  }

  const std::vector<Pool>& pools_;
  const std::vector<Locality>&towers_, &shards_;
  const bool far_cores_;
  size_t tries_ = 0;
  std::vector<Grant> grants_;                                 ///< grants, and one free cpu of each kind
  std::array<std::vector<std::vector<size_t>>, 2> by_owner_;  ///< indices of the grants of towers, of shards
};

}  // namespace

void swap_cores(const std::vector<Pool>& pools, const std::vector<Locality>& towers,
                const std::vector<Locality>& shards, bool far_cores, std::vector<Grant>& grants) {
  // Each swap lowers a sum, so that the loop ends. The bound is one on time: some seconds on the largest hosts.
  constexpr size_t kMostGrants = 512;
  if (grants.size() > kMostGrants) return;
  CoreSwaps swaps(pools, towers, shards, far_cores, grants);
  while (swaps.improve() || swaps.improve_by_two()) {
  }
  grants = swaps.take_grants();
}

}  // namespace gradrail::topology::planning
