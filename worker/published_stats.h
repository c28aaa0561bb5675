#pragma once

#include <atomic>
#include <mutex>

#include "base/clock.h"
#include "worker/client.h"

namespace gradrail::worker {

/// What a client, which has one thread, lets other threads see of itself: a copy of its figures, made often enough for
/// people and programs that watch, and rarely enough that exchanges do not feel it.
/// Threads  publish(), is_due(): the owner. The rest: any thread.
class PublishedStats {
 public:
  bool is_due(TimePoint now) const { return now >= next_; }
  void publish(ClientStats stats, TimePoint now);
  ClientStats stats() const;

  /// Of the last two to four seconds.
  struct Recent {
    double exchanges_per_s = 0.0;
    int64_t p50_ns = 0;
    int64_t p99_ns = 0;
    double staleness_mean = 0.0;
  };
  Recent recent() const;

  void begun(TimePoint at) { begun_.store(at.time_since_epoch().count(), std::memory_order_relaxed); }
  void ended() { begun_.store(0, std::memory_order_relaxed); }
  Duration under_way(TimePoint now) const;

 private:
  TimePoint next_;                        ///< owner
  std::atomic<Duration::rep> begun_ = 0;  ///< when the exchange under way began; 0: none is
  mutable std::mutex mutex_;
  ClientStats stats_;  ///< under mutex_
  Recent recent_;      ///< under mutex_

  // Owner: where the stretches begin that recent_ is about.
  void measure(const ClientStats& stats, TimePoint now);
  ClientStats before_, between_;
  TimePoint before_at_ = Clock::now(), between_at_ = before_at_;
};

}  // namespace gradrail::worker
