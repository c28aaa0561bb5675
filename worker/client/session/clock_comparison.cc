#include "worker/client/session/clock_comparison.h"

#include <algorithm>

namespace gradrail::worker {

void ClockComparison::add(TimePoint asked, int64_t theirs_ns, TimePoint answered) {
  const auto ns = [](TimePoint at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  };
  // The ps read its clock at some moment of the round trip: its middle is wrong by half of it at most.
  const int64_t half = (ns(answered) - ns(asked) + 1) / 2;
  last_[count_++ % kKept] = {.offset_ns = theirs_ns - (ns(asked) + half), .bound_ns = half};
}

ClockOffset ClockComparison::best() const {
  ClockOffset best = *std::min_element(
      last_.begin(), last_.end(), [](const ClockOffset& a, const ClockOffset& b) { return a.bound_ns < b.bound_ns; });
  // Half of the bound is noise of the network: on one host it would only blur a comparison that is exact.
  if (best.offset_ns <= best.bound_ns && -best.offset_ns <= best.bound_ns) best.offset_ns = 0;
  return best;
}

}  // namespace gradrail::worker
