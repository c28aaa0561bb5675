#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "spdlog/spdlog.h"

namespace gradrail::transport::common {

/// Logs connections that never became a peer, at most one line per interval: a port scan must not fill the disk.
class RateLimitedLog {
 public:
  /// `object` begins each line, and outlives this.
  RateLimitedLog(std::string_view object, Duration interval) : object_(object), interval_(interval) {}

  void write(std::string_view what) {
    const TimePoint now = Clock::now();
    if (now < next_) {
      ++suppressed_;
      return;
    }
    if (suppressed_ > 0) {
      spdlog::warn("{}: {} ({} similar messages suppressed)", object_, what, suppressed_);
    } else {
      spdlog::warn("{}: {}", object_, what);
    }
    suppressed_ = 0;
    next_ = now + interval_;
  }

 private:
  const std::string_view object_;
  Duration interval_;
  TimePoint next_{};
  uint64_t suppressed_ = 0;
};

}  // namespace gradrail::transport::common
