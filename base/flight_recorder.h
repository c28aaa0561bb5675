#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradrail/clock.h"
#include "gradrail/trace.h"

namespace gradrail {

/// The last marks of a task, in a ring; without room it costs a comparison.
/// Threads  One owner.
class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 0) : ring_(capacity) {}

  bool is_on() const { return !ring_.empty(); }
  /// `mark.at_ns` is filled in.
  void record(Mark mark, TimePoint at) {
    mark.at_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
    ring_[count_++ % ring_.size()] = mark;
  }
  void record(Mark mark) {
    if (is_on()) record(mark, Clock::now());
  }

  /// Oldest first.
  std::vector<Mark> marks() const {
    std::vector<Mark> result;
    const uint64_t kept = count_ < ring_.size() ? count_ : ring_.size();
    for (uint64_t i = count_ - kept; i < count_; ++i) result.push_back(ring_[i % ring_.size()]);
    return result;
  }

 private:
  std::vector<Mark> ring_;
  uint64_t count_ = 0;
};

}  // namespace gradrail
