#pragma once

#include <atomic>

#include "base/clock.h"

namespace gradrail::ps {

/// Permits one event in each interval. Other processes cause the events: their log lines must not fill a disk.
/// Threads  Any thread.
class RateLimit {
 public:
  explicit RateLimit(Duration interval) : interval_(interval) {}

  bool permits(TimePoint now) {
    TimePoint next = next_.load();
    return now >= next && next_.compare_exchange_strong(next, now + interval_);
  }

 private:
  const Duration interval_;
  std::atomic<TimePoint> next_{};
};

}  // namespace gradrail::ps
