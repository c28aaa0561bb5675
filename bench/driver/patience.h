#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "gradrail/clock.h"

namespace gradrail::bench {

/// The slowest link that is measured: 1 Mbit/s.
inline constexpr double kSlowestLinkBytesPerSecond = 125e3;

/// The time of so many bytes over a link, by default the slowest one. Bounded: a sum with it cannot overflow the clock.
inline Duration link_time(double bytes, double bytes_per_second = kSlowestLinkBytesPerSecond) {
  constexpr double kLongest_s = 1e8;
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(bytes / bytes_per_second, kLongest_s) * 1000));
}

/// The deadline of a measurement. Until its first turn ends, the deadline follows from the bytes of the turn. Then it
/// follows from the slowest turn until now, so that a slow link is no error, and a process without progress is found.
/// Threads  Any, and any process that shares the memory of this object.
class Patience {
 public:
  struct Limits {
    Duration whole{};       ///< time of a measurement on a usual path; the deadline is never earlier
    Duration first_turn{};  ///< time of the first turn, from the start
    Duration pause{};       ///< time between two turns, in addition to eight times the slowest one
  };
  explicit Patience(Limits limits, TimePoint start = Clock::now()) : limits_(limits), start_(start) {}

  void turn_ended(TimePoint now = Clock::now()) {
    const TimePoint before = start_ + Duration(last_.exchange((now - start_).count(), std::memory_order_relaxed));
    const int64_t turn = (now - before).count();
    // The first turn includes the set-up. Processes may report at the same time: the longer turn stays.
    for (int64_t slowest = slowest_; slowest < turn && !slowest_.compare_exchange_weak(slowest, turn);) {
    }
  }

  TimePoint deadline() const {
    const Duration last(last_.load(std::memory_order_relaxed));
    if (last == Duration::zero()) return start_ + std::max(limits_.whole, limits_.first_turn);
    constexpr int kSlower = 8;  // a busy machine, and the end of the run: a check
    return start_ + std::max(limits_.whole, last + limits_.pause + kSlower * Duration(slowest_.load()));
  }

 private:
  const Limits limits_;
  const TimePoint start_;
  std::atomic<int64_t> last_ = 0;  ///< time from the start to the end of the last turn, in units of Duration; 0: none
  std::atomic<int64_t> slowest_ = 0;
};

/// A turn that reports to a Patience costs some nanoseconds: those of this time report once.
inline constexpr Duration kReportTurnsEvery = std::chrono::milliseconds(100);

}  // namespace gradrail::bench
