#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "topology/plan/cores.h"

namespace gradrail::topology::planning {
namespace {

/// How far the threads of a unit are from where they should be; less is better. Compared in this order.
struct Farness {
  int crossing = 0;         ///< GPU towers that compute outside of the GPU's package
  int helper_crossing = 0;  ///< progress threads likewise
  int from_gpu = 0;         ///< distances
  int from_tower = 0;       ///< of progress threads
  int from_nic = 0;         ///< of shards
  int packages = 0;         ///< of CPU towers
  int pools = 0;            ///< likewise
  auto operator<=>(const Farness&) const = default;

  void add(const Farness& other) {
    crossing += other.crossing;
    helper_crossing += other.helper_crossing;
    from_gpu += other.from_gpu;
    from_tower += other.from_tower;
    from_nic += other.from_nic;
    packages += other.packages;
    pools += other.pools;
  }
};

/// The threads of one tower or shard.
using Owner = std::pair<bool, size_t>;
Owner owner_of(const Grant& grant) { return {grant.role == ThreadRole::shard, grant.owner}; }

class Exchange {
 public:
  Exchange(const std::vector<Pool>& pools, const std::vector<Locality>& towers, const std::vector<Locality>& shards,
           bool far_cores, std::vector<Grant>& grants)
      : pools_(pools), towers_(towers), shards_(shards), far_cores_(far_cores), grants_(grants) {
    for (size_t g = 0; g < grants.size(); ++g) by_owner_[owner_of(grants[g]).first].resize(owners(grants[g]));
    for (size_t g = 0; g < grants.size(); ++g) by_owner_[owner_of(grants[g]).first][grants[g].owner].push_back(g);
  }

  /// Whether two threads have exchanged their cpus.
  bool improve() {
    for (size_t a = 0; a < grants_.size(); ++a) {
      const Farness none;
      if (farness(owner_of(grants_[a])) == none) continue;
      for (size_t b = 0; b < grants_.size(); ++b)
        if (grants_[a].pool != grants_[b].pool && owner_of(grants_[a]) != owner_of(grants_[b]) && is_movable(a) &&
            is_movable(b) && try_swap(a, b))
          return true;
    }
    return false;
  }

 private:
  size_t owners(const Grant& grant) const { return grant.role == ThreadRole::shard ? shards_.size() : towers_.size(); }

  /// The further cores of a GPU tower stay together, unless the request asks for more than there are beside the GPU.
  bool is_movable(size_t g) const {
    const Grant& grant = grants_[g];
    if (far_cores_ || grant.role != ThreadRole::compute || !towers_[grant.owner].feeds_gpu) return true;
    const std::vector<size_t>& threads = by_owner_[0][grant.owner];
    return std::count_if(threads.begin(), threads.end(),
                         [&](size_t other) { return grants_[other].role == ThreadRole::compute; }) == 1;
  }

  bool try_swap(size_t a, size_t b) {
    const Farness before = both(a, b);
    swap(a, b);
    if (both(a, b) < before) return true;
    swap(a, b);
    return false;
  }

  void swap(size_t a, size_t b) {
    std::swap(grants_[a].pool, grants_[b].pool);
    std::swap(grants_[a].level, grants_[b].level);
  }

  Farness both(size_t a, size_t b) const {
    Farness sum = farness(owner_of(grants_[a]));
    sum.add(farness(owner_of(grants_[b])));
    return sum;
  }

  Farness farness(const Owner& owner) const {
    const std::vector<size_t>& threads = by_owner_[owner.first][owner.second];
    if (owner.first) return {.from_nic = distance(pools_[grants_[threads[0]].pool], shards_[owner.second])};
    const Locality& place = towers_[owner.second];
    return place.feeds_gpu ? from_gpu(threads, place) : spread(threads);
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
  std::vector<Grant>& grants_;
  std::array<std::vector<std::vector<size_t>>, 2> by_owner_;  ///< of towers, of shards: indices of grants
};

}  // namespace

void exchange_cores(const std::vector<Pool>& pools, const std::vector<Locality>& towers,
                    const std::vector<Locality>& shards, bool far_cores, std::vector<Grant>& grants) {
  // Each exchange lowers a sum, so that the loop ends. The bound is one on time: some seconds on the largest hosts.
  constexpr size_t kMostGrants = 512;
  if (grants.size() > kMostGrants) return;
  Exchange exchange(pools, towers, shards, far_cores, grants);
  while (exchange.improve()) {
  }
}

}  // namespace gradrail::topology::planning
