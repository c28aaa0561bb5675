#include "worker/client/published_stats.h"

#include <algorithm>
#include <utility>

namespace gradrail::worker {
namespace {

/// A copy takes some ten microseconds: less than a ten-thousandth of this interval.
constexpr auto kEvery = std::chrono::milliseconds(250);
// Figures cover one to two of these: enough exchanges for a p99, and a change is visible soon.
constexpr auto kStretch = std::chrono::seconds(2);

}  // namespace

void PublishedStats::publish(ClientStats stats, TimePoint now) {
  next_ = now + kEvery;
  // Readers are monitors and the heartbeat: the owner rarely waits for this lock.
  MutexLock lock(mutex_);
  measure(stats, now);
  stats_ = std::move(stats);
}

void PublishedStats::measure(const ClientStats& stats, TimePoint now) {
  if (now - between_at_ >= kStretch) {
    before_ = std::exchange(between_, stats);
    before_at_ = std::exchange(between_at_, now);
  }
  Histogram latest = stats.exchange;
  latest.subtract(before_.exchange);
  if (latest.count() == 0) return;  // no exchange has ended: the figures before are better than none
  const auto exchanges = static_cast<double>(latest.count());
  recent_ = {.exchanges_per_s = exchanges / std::chrono::duration<double>(now - before_at_).count(),
             .p50_ns = latest.quantile_ns(0.5),
             .p99_ns = latest.quantile_ns(0.99),
             .staleness_mean = static_cast<double>(stats.staleness_sum - before_.staleness_sum) / exchanges};
}

PublishedStats::Recent PublishedStats::recent() const {
  MutexLock lock(mutex_);
  return recent_;
}

ClientStats PublishedStats::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

Duration PublishedStats::under_way(TimePoint now) const {
  const Duration::rep begun = begun_.load(std::memory_order_relaxed);
  return begun == 0 ? Duration::zero() : std::max(Duration::zero(), now.time_since_epoch() - Duration(begun));
}

}  // namespace gradrail::worker
