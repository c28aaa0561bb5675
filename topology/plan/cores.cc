#include "topology/plan/cores.h"

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <tuple>

#include "topology/plan/blocks.h"

namespace gradrail::topology::planning {
namespace {

struct Thread {
  ThreadRole role = ThreadRole::compute;
  size_t owner = 0;
  Locality locality;
  int stay = -1;  ///< a pool where its owner has cores already: rather a second one there than in yet another pool
  bool only_there = false;
};

/// A place near one node leaves no choice among pools, a place near a package leaves some.
bool has_less_choice(const Locality& a, const Locality& b) {
  const auto choice = [](const Locality& place) { return std::pair(place.numa_node < 0, place.package < 0); };
  return choice(a) < choice(b);
}

/// The price of a cpu for a thread; less is better. The fields are compared in this order (rule 2 of plan.h).
struct Price {
  bool crosses = false;  ///< a thread of a GPU outside of the GPU's package
  size_t level = 0;      ///< busy threads that the core has already
  int away = 0;          ///< distance()
  auto operator<=>(const Price&) const = default;
};

/// The cpus that are still free. A core's first cpu is at level 0, its siblings are above.
class FreeCores {
 public:
  explicit FreeCores(const std::vector<Pool>& pools) : pools_(pools), free_(1, std::vector<int>(pools.size())) {
    for (size_t p = 0; p < pools.size(); ++p) {
      for (const Pool::UsableCore& core : pools[p].cores) {
        // Cores differ in their number of siblings, on hybrid processors and in cgroups.
        if (core.cpus.size() > free_.size()) free_.resize(core.cpus.size(), std::vector<int>(pools.size()));
        for (size_t level = 0; level < core.cpus.size(); ++level) ++free_[level][p];
      }
    }
  }

  size_t levels() const { return free_.size(); }
  const std::vector<int>& cores() const { return free_[0]; }
  int core_count() const { return std::accumulate(free_[0].begin(), free_[0].end(), 0); }

  /// Free cores by pool. Where they are fewer than `threads`: and as many siblings. The roomiest pools are first, and
  /// before them those where a unit of `unit` threads would not fit otherwise.
  std::vector<int> room(int threads, int unit) const {
    std::vector<int> room = cores();
    int missing = threads - core_count();
    for (size_t level = 1; level < levels(); ++level) {
      std::vector<int> siblings = free_[level];
      for (; missing > 0; --missing) {
        const auto merit = [&](size_t p) { return std::tuple(siblings[p] > 0, room[p] % unit != 0, siblings[p]); };
        size_t best = 0;
        for (size_t p = 1; p < room.size(); ++p)
          if (merit(p) > merit(best)) best = p;
        if (siblings[best] == 0) break;
        --siblings[best];
        ++room[best];
      }
    }
    return room;
  }

  /// A core of this pool, or a sibling where no core is left.
  void take(ThreadRole role, size_t owner, size_t pool, std::vector<Grant>& grants) {
    size_t level = 0;
    while (free_[level][pool] == 0) ++level;
    --free_[level][pool];
    grants.push_back({role, owner, pool, level});
  }

  /// Serves those of `threads` that fit. The price is the outer loop: no thread takes a cpu that another one of them
  /// would get for less. Removes the served threads.
  void serve(std::vector<Thread>& threads, size_t levels, std::vector<Grant>& grants) {
    std::stable_sort(threads.begin(), threads.end(),
                     [](const Thread& a, const Thread& b) { return has_less_choice(a.locality, b.locality); });
    for (const bool crosses : {false, true})
      for (size_t level = 0; level < levels; ++level)
        for (int away = 0; away <= kFarthest; ++away) {
          std::erase_if(threads, [&](const Thread& thread) {
            const int pool = best_pool({crosses, level, away}, thread);
            if (pool < 0) return false;
            take(thread.role, thread.owner, static_cast<size_t>(pool), grants);
            return true;
          });
        }
  }

 private:
  int best_pool(const Price& price, const Thread& thread) const {
    const auto open = [&](int p) {
      const int away = distance(pools_[p], thread.locality);
      const bool crosses = thread.locality.feeds_gpu && away == kFarthest;
      return free_[price.level][p] > 0 && Price{crosses, price.level, away} == price;
    };
    if (thread.stay >= 0 && open(thread.stay)) return thread.stay;
    if (thread.only_there) return -1;
    // The roomiest; of equals the next neighbor in hwloc's order, where neighbors are near each other.
    const auto merit = [&](int p) { return std::pair(-free_[price.level][p], std::abs(p - thread.stay)); };
    int best = -1;
    for (int p = 0; p < static_cast<int>(pools_.size()); ++p)
      if (open(p) && (best < 0 || merit(p) < merit(best))) best = p;
    return best;
  }

  const std::vector<Pool>& pools_;
  std::vector<std::vector<int>> free_;  ///< [level][pool]
};

/// Assigns the cores of a host that has a cpu for each thread.
class Dealer {
 public:
  Dealer(const std::vector<Pool>& pools, const Request& request, bool progress, const std::vector<Locality>& towers)
      : pools_(pools), wanted_(request.cores_per_tower), progress_(progress), towers_(towers), free_(pools) {
    for (size_t t = 0; t < towers.size(); ++t) (towers[t].feeds_gpu ? on_gpus_ : on_cpus_).push_back(t);
  }

  std::vector<Grant> deal(const std::vector<Locality>& shards) {
    // Towers on GPUs before shards: a shard works as well on another core, a GPU waits for its threads.
    serve(computing(on_gpus_));
    serve(progressing(on_gpus_));
    const int least = static_cast<int>(on_cpus_.size()) * unit();
    deal_shards(shards, least);
    // A CPU tower can use any core, a GPU tower those beside its GPU. GPU towers therefore get their even share first,
    // CPU towers share the remainder, and GPU towers get the cores that CPU towers leave.
    if (free_.core_count() >= least) extend(even_shares());
    deal_blocks(cut(free_.room(least, unit()), 0).blocks);
    extend(std::vector<int>(towers_.size(), CpuSet::kMaxCpu));
    return std::move(grants_);
  }

 private:
  void serve(std::vector<Thread> threads) { free_.serve(threads, free_.levels(), grants_); }

  std::vector<Thread> computing(const std::vector<size_t>& towers) const {
    std::vector<Thread> threads;
    for (const size_t t : towers) threads.push_back({ThreadRole::compute, t, towers_[t]});
    return threads;
  }

  /// Near the core that the tower has got, not near its GPU: both threads share the caches.
  std::vector<Thread> progressing(const std::vector<size_t>& towers) const {
    std::vector<Thread> threads;
    if (!progress_) return threads;
    for (const size_t t : towers) {
      const Pool& pool = pools_[home(t)];
      threads.push_back({ThreadRole::progress, t, {pool.numa_node, pool.package, towers_[t].feeds_gpu}});
    }
    return threads;
  }

  /// The pool of the tower's last core.
  size_t home(size_t tower) const {
    const auto last = std::find_if(grants_.rbegin(), grants_.rend(), [&](const Grant& grant) {
      return grant.role == ThreadRole::compute && grant.owner == tower;
    });
    return last->pool;
  }

  int held(size_t tower) const {
    return static_cast<int>(std::count_if(grants_.begin(), grants_.end(), [&](const Grant& grant) {
      return grant.role != ThreadRole::shard && grant.owner == tower;
    }));
  }

  /// Threads of a tower, without further cores.
  int unit() const { return progress_ ? 2 : 1; }

  /// The number of cores for each tower, progress threads included, if all cores are shared evenly.
  std::vector<int> even_shares() const {
    int cores = free_.core_count();
    for (const size_t t : on_gpus_) cores += held(t);
    const int count = static_cast<int>(towers_.size());
    std::vector<int> shares;
    for (int t = 0; t < count; ++t) shares.push_back(cores / count + (t < cores % count ? 1 : 0));
    return shares;
  }

  /// Adds cores for GPU towers in turn, up to `limits` and the number in the request.
  void extend(const std::vector<int>& limits) {
    std::vector<int> left, homes;
    for (const size_t t : on_gpus_) {
      const int most = wanted_ == 0 ? limits[t] : std::min(limits[t], wanted_ + (progress_ ? 1 : 0));
      left.push_back(most - held(t));
      homes.push_back(static_cast<int>(home(t)));
    }
    for (size_t before = grants_.size(), first = 1; first == 1 || grants_.size() > before; first = 0) {
      before = grants_.size();
      std::vector<Thread> more;
      for (size_t i = 0; i < on_gpus_.size(); ++i) {
        // Extra cores far from the GPU would only copy through another node. They need an explicit number in the
        // request.
        if (left[i] > 0)
          more.push_back({ThreadRole::compute, on_gpus_[i], towers_[on_gpus_[i]], homes[i], wanted_ == 0});
      }
      free_.serve(more, 1, grants_);  // a sibling would slow the thread beside it: cores only
      for (size_t g = before; g < grants_.size(); ++g) {
        const size_t i = std::find(on_gpus_.begin(), on_gpus_.end(), grants_[g].owner) - on_gpus_.begin();
        --left[i];
        homes[i] = static_cast<int>(grants_[g].pool);
      }
    }
  }

  Blocks cut(const std::vector<int>& room, int gaps) const {
    const int most = wanted_ == 0 ? 0 : wanted_ + (progress_ ? 1 : 0);
    return cut_blocks(pools_, room, static_cast<int>(on_cpus_.size()), most, gaps);
  }

  /// The nearest pools with room. Of equally near ones a shard takes the one that leaves the best blocks to CPU towers,
  /// which need `least` cpus.
  void deal_shards(const std::vector<Locality>& shards, int least) {
    // The search takes long where hundreds of towers and shards share a host. The roomiest pool is good enough there.
    constexpr size_t kMostCuts = 4096;
    const bool searches = on_cpus_.size() * shards.size() * pools_.size() <= kMostCuts;
    std::vector<size_t> order(shards.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return has_less_choice(shards[a], shards[b]); });
    int left = static_cast<int>(shards.size());
    std::vector<int> room = free_.room(least + left, unit());
    for (const size_t s : order) {
      --left;
      const auto merit = [&](size_t p) {
        --room[p];
        const int64_t crossings = searches ? cut(room, left).crossings : 0;
        ++room[p];
        return std::tuple(distance(pools_[p], shards[s]), crossings, -room[p], p);
      };
      std::optional<decltype(merit(0))> best;
      for (size_t p = 0; p < pools_.size(); ++p)
        if (room[p] > 0) best = best ? std::min(*best, merit(p)) : merit(p);
      const size_t pool = std::get<3>(*best);
      --room[pool];
      free_.take(ThreadRole::shard, s, pool, grants_);
    }
  }

  void deal_blocks(const std::vector<Block>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      // The pool with the most cores is first, and has the progress thread.
      int skipped = progress_ ? 1 : 0;
      for (const auto& [pool, threads] : blocks[i])
        for (int thread = 0; thread < threads; ++thread)
          if (skipped-- <= 0) free_.take(ThreadRole::compute, on_cpus_[i], pool, grants_);
    }
    // Afterwards: where cores are few, progress threads have the siblings.
    for (size_t i = 0; i < blocks.size() && progress_; ++i)
      free_.take(ThreadRole::progress, on_cpus_[i], blocks[i].front().first, grants_);
  }

  const std::vector<Pool>& pools_;
  const int wanted_;  ///< cores for computing, of a tower; 0: what there is
  const bool progress_;
  const std::vector<Locality>& towers_;
  std::vector<size_t> on_gpus_, on_cpus_;
  FreeCores free_;
  std::vector<Grant> grants_;
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
  std::vector<Grant> grants = Dealer(pools, request, demand.progress, towers).deal(shards);
  swap_cores(pools, towers, shards, request.cores_per_tower > 0, grants);
  return grants;
}

}  // namespace gradrail::topology::planning
