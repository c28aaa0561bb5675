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
    ring_[next_] = mark;
    if (++next_ < ring_.size()) return;
    next_ = 0;
    is_full_ = true;
  }
  void record(Mark mark) {
    if (is_on()) record(mark, Clock::now());
  }

  /// Oldest first.
  std::vector<Mark> marks() const {
    std::vector<Mark> result;
    const auto next = ring_.begin() + static_cast<ptrdiff_t>(next_);
    if (is_full_) result.assign(next, ring_.end());
    result.insert(result.end(), ring_.begin(), next);
    return result;
  }

 private:
  std::vector<Mark> ring_;
  size_t next_ = 0;       ///< place of the next mark
  bool is_full_ = false;  ///< the places from next_ on have the oldest marks
};

}  // namespace gradrail
