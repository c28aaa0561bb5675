#include "worker/published_stats.h"

#include <algorithm>

namespace gradrail::worker {
namespace {

/// A copy takes some ten microseconds: less than a ten-thousandth of this.
constexpr auto kEvery = std::chrono::milliseconds(250);

}  // namespace

void PublishedStats::publish(ClientStats stats, TimePoint now) {
  next_ = now + kEvery;
  std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

ClientStats PublishedStats::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

Duration PublishedStats::under_way(TimePoint now) const {
  const Duration::rep begun = begun_.load(std::memory_order_relaxed);
  return begun == 0 ? Duration::zero() : std::max(Duration::zero(), now.time_since_epoch() - Duration(begun));
}

}  // namespace gradrail::worker
