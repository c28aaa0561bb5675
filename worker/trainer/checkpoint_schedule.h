#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gradrail/clock.h"
#include "worker/trainer/variables.h"

namespace gradrail::worker {

/// How often the chief saves; both count. Zero: not for that reason.
struct SaveEvery {
  Duration time = Duration::zero();
  uint64_t steps = 0;  ///< of the chief
};

/// When the chief saves. Nothing is waited for but the copies that shards take. A save that comes due while the last
/// one is still being written is put off until that is done. A save that fails during the run is a warning: the earlier
/// save is there, and training may yet reach the next one. The last save's failure is the run's.
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
  bool pending_ = false;      ///< one was begun, and what became of it not yet asked
};

}  // namespace gradrail::worker
