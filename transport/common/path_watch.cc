#include "transport/common/path_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace gradrail::transport::common {
namespace {

constexpr double kSlowestDevice = 4e6;  // bytes per second
constexpr Duration kBetweenProbes = std::chrono::seconds(1);

Duration transfer_time(uint64_t bytes) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / kSlowestDevice));
}

}  // namespace

PathWatch::Verdict PathWatch::check(TimePoint now, bool waits, uint64_t finished,
                                    absl::FunctionRef<uint64_t()> posted_bytes) {
  const bool first_look = silent_since_ == TimePoint{};
  if (!waits || first_look || std::exchange(finished_before_, finished) != finished) {
    silent_since_ = now;
    // An answer to a probe of the former silence proves nothing about this one.
    awaits_answer_ = false;
    answers_ = 0;
    return Verdict::fine;
  }
  // The probes begin early enough for kAnswers answers within the limit.
  const Duration first_probe = limit_ - std::min(limit_, (kAnswers + 1) * kBetweenProbes);
  if (silence(now) < first_probe) return Verdict::fine;
  if (answers_ >= kAnswers && silence(now) >= limit_) {
    return silence(now) >= limit_ + transfer_time(posted_bytes()) ? Verdict::lost : Verdict::fine;
  }
  return answers_ < kAnswers && !awaits_answer_ && now - probed_at_ >= kBetweenProbes ? Verdict::probe : Verdict::fine;
}

void PathWatch::probed(TimePoint now) {
  probed_at_ = now;
  awaits_answer_ = true;
  ++probe_;
}

void PathWatch::answered(uint32_t number) {
  if (number != probe_ || !std::exchange(awaits_answer_, false)) return;
  ++answers_;
}

}  // namespace gradrail::transport::common
