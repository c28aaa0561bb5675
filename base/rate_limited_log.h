#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/log.h"
#include "base/mutex.h"
#include "gradrail/clock.h"

namespace gradrail {

/// Limits log lines that other processes can cause, also processes without authentication: any local user could fill
/// the disk otherwise. The line after an interval has the number of those that were suppressed.
/// Threads  Any thread.
class RateLimitedLog {
 public:
  /// Permits `lines` in each interval.
  explicit RateLimitedLog(Duration interval = std::chrono::seconds(10), uint32_t lines = 1)
      : interval_(interval), lines_(lines) {}
  RateLimitedLog(const RateLimitedLog&) = delete;
  RateLimitedLog& operator=(const RateLimitedLog&) = delete;
  ~RateLimitedLog() {
    if (suppressed_ > 0) log_warning("{} ({} similar messages suppressed)", last_, suppressed_);
  }

  void write(std::string_view text, LogLevel level = LogLevel::warn) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!is_logged(level)) return;
    const TimePoint now = Clock::now();
    uint64_t suppressed = 0;
    {
      const MutexLock lock(mutex_);
      if (now >= end_) {
        end_ = now + interval_;
        written_ = 0;
      }
      if (written_ == lines_) {
        ++suppressed_;
        last_ = text;
        return;
      }
      ++written_;
      suppressed = std::exchange(suppressed_, 0);
    }
    if (suppressed == 0) return write_log(level, text);
    write_log(level, fmt::format("{} ({} similar messages suppressed)", text, suppressed));
  }

 private:
  const Duration interval_;
  const uint32_t lines_;
  Mutex mutex_;
  TimePoint end_ ABSL_GUARDED_BY(mutex_){};       ///< end of the interval
  uint32_t written_ ABSL_GUARDED_BY(mutex_) = 0;  ///< lines in this interval
  uint64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_ ABSL_GUARDED_BY(mutex_);  ///< last suppressed line
};

}  // namespace gradrail
