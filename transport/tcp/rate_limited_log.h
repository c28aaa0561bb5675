#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "spdlog/spdlog.h"

namespace gradrail::transport::tcp {

/// Logs connections that never became a peer, at most one line per interval: a port scan must not fill the disk.
class RateLimitedLog {
 public:
  explicit RateLimitedLog(Duration interval) : interval_(interval) {}

  void write(std::string_view what) {
    const TimePoint now = Clock::now();
    if (now < next_) {
      ++suppressed_;
      return;
    }
    if (suppressed_ > 0) {
      spdlog::warn("tcp: {} ({} similar messages suppressed)", what, suppressed_);
    } else {
      spdlog::warn("tcp: {}", what);
    }
    suppressed_ = 0;
    next_ = now + interval_;
  }

 private:
  Duration interval_;
  TimePoint next_{};
  uint64_t suppressed_ = 0;
};

}  // namespace gradrail::transport::tcp
