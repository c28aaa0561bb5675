#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gradrail/clock.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// The timers of the grace windows of one shard. ShardProtocol decides when a window begins and what its end means.
/// This class decides how long it is. Each bucket has its own timer. The windows of one step of a fragment have equal
/// lengths. A worker with an equal lag in all buckets is then in time for all of them, or for none.
///
/// Buckets that share a place in a slot region (SlotPlaces) arrive one after the other. If the window of the first one
/// has ended before all workers took part, those behind it have windows without length in this step. Else the step
/// would have one window after the other, and would wait for a worker that is late anyway.
///
/// grace=S     Each window has S seconds.
/// grace=auto  A lag is the time from when a bucket has enough gradients to a later arrival of the same step. A
///             worker's lag in a step is the longest one of its buckets. A window has the 90th percentile of the last
///             64 lags, and a quarter more. It is not longer than the step took before it, and not longer than 10 s.
///             Lags beyond that limit do not count, because a wait for them would be in vain. Without a lag that
///             counts, the window has no length. The first two windows of a fragment have the longest permitted length
///             while no lag is known. Else a run of few long steps would lose what is late in them.
/// Threads  Owner thread of the shard. Time is an argument.
class GraceWindows {
 public:
  struct End {
    uint32_t bucket = 0;
    uint64_t step = 0;
  };

  struct Place {
    uint32_t fragment = 0;
    std::optional<uint32_t> before = {};  ///< the bucket that leaves before this one from their common place
  };

  /// Removes all windows and lags. `places` has the place of each bucket.
  void reset(const Grace& grace, const std::vector<Place>& places, TimePoint now);

  /// A push of a step, or an absence from it, has arrived.
  void on_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step, TimePoint now);
  void on_applied(uint32_t bucket, TimePoint now);
  void begin(uint32_t bucket, uint64_t step, TimePoint now);

  /// TimePoint::max(): no window is open.
  TimePoint next_end() const { return ends_.empty() ? TimePoint::max() : ends_.begin()->first; }
  /// Longest of the latest windows of all fragments; 0 before the first one. Empty without grace=auto.
  std::optional<Duration> learned() const;
  /// The next window that has ended. It is closed then.
  std::optional<End> take_ended(TimePoint now);

 private:
  /// A step of a bucket, and the time at which it had enough gradients.
  struct Moment {
    uint64_t step = 0;  ///< 0: none
    TimePoint at;
  };
  struct Bucket {
    Place place;
    std::optional<TimePoint> end;  ///< end of the open window
    uint64_t ended_step = 0;       ///< latest step with a window that has ended
    TimePoint applied_at;          ///< the next step began here
    Moment latest, previous;
  };
  struct Fragment {
    uint64_t step = 0;  ///< latest step with a window
    Duration length{};
    uint64_t count = 0;  ///< number of its windows
  };
  struct Lag {
    uint64_t step = 0;
    Duration longest{};
  };
  static constexpr size_t kLags = 64;

  Duration length_of(const Bucket& bucket, uint64_t step, TimePoint now);
  Duration learned_length(Duration limit) const;
  void record(Duration lag);

  Grace grace_;
  std::vector<Bucket> buckets_;
  std::vector<Fragment> fragments_;
  std::set<std::pair<TimePoint, uint32_t>> ends_;  ///< ends of open windows, with their buckets
  std::map<std::pair<WorkerIndex, uint32_t>, Lag>
      under_way_;                       ///< auto: of each worker and fragment, in its present step
  std::array<Duration, kLags> lags_{};  ///< auto: a ring
  uint64_t lag_count_ = 0;              ///< number of recorded lags
};

}  // namespace gradrail::ps
