#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradrail/clock.h"
#include "ps/protocol/trace_marks.h"

namespace gradrail::worker {

struct ClockOffset {
  int64_t offset_ns = 0;                 ///< added to our Clock it is theirs
  int64_t bound_ns = ps::kMaxTraceTime;  ///< bound of the error; nothing is known before the first answer
};

/// The offset of another host's clock, from requests that the host answers with its time. The clock was read between
/// request and answer, so that half the round trip bounds the error. The shortest of the last round trips decides.
/// Source   Cristian, Probabilistic clock synchronization, 1989.
class ClockComparison {
 public:
  void add(TimePoint asked, int64_t theirs_ns, TimePoint answered);
  /// An offset within its own bound is given as 0: on one host there is one clock.
  ClockOffset best() const;

 private:
  /// Half a minute of heartbeats: two quartz clocks drift by less than 2 ms in that time.
  static constexpr size_t kKept = 60;
  std::array<ClockOffset, kKept> last_{};
  size_t count_ = 0;
};

}  // namespace gradrail::worker
