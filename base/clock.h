#pragma once

#include <chrono>
#include <cstdint>

#include "gradrail/clock.h"

namespace gradrail {

/// A time from a flag or a message. Its magnitude must be below 9.2e9 seconds.
constexpr Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

inline double seconds_since(TimePoint start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
inline int64_t nanoseconds_since(TimePoint start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

}  // namespace gradrail
