#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "bench/predict/network/events.h"

namespace gradrail::bench::predict {

/// One direction of a NIC. Messages that cross it at the same moment have equal shares of its rate.
/// A message ends when a clock, which advances by rate / number of messages, has advanced by its bytes.
/// Source  Kleinrock, 1967 (processor sharing). Demers et al., SIGCOMM 1989 (virtual time of fair queueing).
class Link {
 public:
  explicit Link(double gbit) : bytes_per_ns_(gbit / 8) {}

  /// A message begins. Returns the moment of the next event of this link; infinity: one is inserted already.
  Time begin(uint32_t message, double bytes, Time now) {
    advance(now);
    active_.push({clock_ + bytes, message});
    return next();
  }

  /// Acknowledgments cross the link among the messages. An idle link has time for them.
  void delay(double bytes, Time now) {
    if (active_.empty()) return;
    advance(now);
    clock_ -= bytes / count();
  }

  /// Handles an event of this link: moves finished messages to `finished`. Returns as begin().
  Time finish(Time now, std::vector<uint32_t>& finished) {
    if (now < scheduled_) return kNever;  // an earlier event has replaced this one
    scheduled_ = kNever;
    advance(now);
    while (!active_.empty() && left() <= kRounding + now * kResolution) {
      finished.push_back(active_.top().message);
      active_.pop();
    }
    if (active_.empty()) clock_ = 0;
    return next();
  }

  bool is_idle() const { return active_.empty(); }
  /// Bytes that have crossed the link so far.
  double crossed(Time now) {
    advance(now);
    return crossed_;
  }
  double bytes_per_ns() const { return bytes_per_ns_; }

 private:
  static constexpr Time kNever = std::numeric_limits<Time>::infinity();
  static constexpr Time kRounding = 1e-3;
  /// The resolution of a moment, as a share of it. A message with less time left would never end.
  static constexpr double kResolution = 1e-15;

  double count() const { return static_cast<double>(active_.size()); }

  void advance(Time now) {
    if (!active_.empty()) {
      const double bytes = (now - since_) * bytes_per_ns_;
      clock_ += bytes / count();
      crossed_ += bytes;
    }
    since_ = now;
  }

  /// Time until the next message ends, if no other one begins.
  Time left() const { return std::max(0.0, active_.top().end - clock_) * count() / bytes_per_ns_; }

  Time next() {
    if (active_.empty()) return kNever;
    const Time at = since_ + left();
    // Later messages delay the end of all. The event that was inserted before finds this out.
    if (at >= scheduled_) return kNever;
    scheduled_ = at;
    return at;
  }

  struct Active {
    double end;  ///< value of the clock
    uint32_t message;
    bool operator>(const Active& other) const { return end != other.end ? end > other.end : message > other.message; }
  };
  double bytes_per_ns_;
  double clock_ = 0;
  double crossed_ = 0;
  Time since_ = 0;
  Time scheduled_ = kNever;
  std::priority_queue<Active, std::vector<Active>, std::greater<>> active_;
};

}  // namespace gradrail::bench::predict
