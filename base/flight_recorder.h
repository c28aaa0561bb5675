#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace gradrail {

/// One event of a bucket within an exchange.
struct Mark {
  enum class Kind : uint8_t {
    begun,     ///< worker: the exchange as a whole
    pushed,    ///< worker: the trainer has handed the gradient over
    copied,    ///< worker: the GPU has packed it, or it has come from there to the host, where it is staged
    posted,    ///< worker: the transport has taken its header
    answered,  ///< worker: the notice of fresh parameters was seen
    done,      ///< worker: all fresh parameters are where the trainer reads them; the exchange as a whole
    noticed,   ///< shard: the notice of its header came out of the transport
    taken,     ///< shard: its turn has come
    applying,  ///< shard: every expected gradient has arrived
    applied,   ///< shard
  };
  int64_t at_ns = 0;  ///< of Clock: the same for all processes of a host, since it started
  uint64_t step = 0;  ///< the worker's own
  uint32_t worker = 0;
  uint32_t shard = 0;
  uint32_t bucket = 0;  ///< of the shard
  Kind kind{};
};

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
