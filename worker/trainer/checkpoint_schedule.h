#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gradrail/clock.h"
#include "worker/trainer/variables.h"

namespace gradrail::worker {

/// Intervals of the chief's saves; both count. Zero: this interval causes no save.
struct SaveEvery {
  Duration time = Duration::zero();
  uint64_t steps = 0;  ///< steps of the chief
};

/// The times of the chief's saves. The chief waits only for the copies that shards take. A save that is due during the
/// writing of the last one is delayed until the writing ends. A save that fails during the run is a warning: the
/// earlier save exists, and training may yet reach the next one. The failure of the last save is the failure of the
/// run.
/// Threads  Owner thread of the variables.
class CheckpointSchedule {
 public:
  CheckpointSchedule(Variables& variables, SaveEvery every);

  /// `steps` of this worker are done.
  void after_step(uint64_t steps);

  /// Whether a save was begun after exactly so many steps of this worker, and has not failed yet.
  bool has_saved(uint64_t steps) const { return steps > 0 && saved_after_ == steps; }

  /// Saves what the run ends with and waits until it is written, and whatever was before it. `unchanged`: no update was
  /// applied since the last save, so that a second one is not needed.
  absl::Status at_end(bool unchanged);

 private:
  bool due(uint64_t steps) const;
  void begin(uint64_t steps);
  void take_outcome();
  void failed(const absl::Status& why);

  Variables& variables_;
  const SaveEvery every_;
  uint64_t next_step_;
  TimePoint next_time_;
  uint64_t saved_after_ = 0;  ///< steps of this worker at the last save that has not failed; 0: there is none
  bool pending_ = false;      ///< a save was begun, and its result is not known yet
};

}  // namespace gradrail::worker
