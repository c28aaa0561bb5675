#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"

namespace gradrail::worker {

/// A copy of the client's figures for other threads. It is made often enough for people and monitors, and rarely enough
/// that it costs exchanges nothing.
/// Threads  publish(), is_due(): the owner. The rest: any thread.
class PublishedStats {
 public:
  bool is_due(TimePoint now) const { return now >= next_; }
  void publish(ClientStats stats, TimePoint now);
  ClientStats stats() const;

  /// Figures of the last two to four seconds.
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
  std::atomic<Duration::rep> begun_ = 0;  ///< begin of the exchange under way; 0: none is
  mutable Mutex mutex_;
  ClientStats stats_ ABSL_GUARDED_BY(mutex_);
  Recent recent_ ABSL_GUARDED_BY(mutex_);

  // Owner: where the intervals begin that recent_ covers.
  void measure(const ClientStats& stats, TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ClientStats before_, between_;
  TimePoint before_at_ = Clock::now(), between_at_ = before_at_;
};

}  // namespace gradrail::worker
