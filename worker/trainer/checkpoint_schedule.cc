#include "worker/trainer/checkpoint_schedule.h"

#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "fmt/ranges.h"

namespace gradrail::worker {

CheckpointSchedule::CheckpointSchedule(Variables& variables, SaveEvery every)
    : variables_(variables), every_(every), next_step_(every.steps), next_time_(Clock::now() + every.time) {}

bool CheckpointSchedule::due(uint64_t steps) const {
  return (every_.steps > 0 && steps >= next_step_) || (every_.time > Duration::zero() && Clock::now() >= next_time_);
}

void CheckpointSchedule::after_step(uint64_t steps) {
  // The outcome first: one save at a time, and a due one starts only after it.
  if (pending_ && !variables_.checkpoint_under_way()) take_outcome();
  if (!pending_ && variables_.saves_checkpoints() && due(steps)) begin(steps);
}

void CheckpointSchedule::begin(uint64_t steps) {
  // Counted from multiples: one that was put off does not put off those behind it.
  if (every_.steps > 0) next_step_ = (steps / every_.steps + 1) * every_.steps;
  // The interval counts from the start of a save, successful or not: a full disk is not tried at each step.
  next_time_ = Clock::now() + every_.time;
  const absl::Status begun = variables_.begin_checkpoint();
  pending_ = begun.ok();
  saved_after_ = steps;
  if (!begun.ok()) failed(begun);
}

void CheckpointSchedule::take_outcome() {
  pending_ = false;
  const absl::StatusOr<std::vector<std::string>> files = variables_.finish_checkpoint();
  if (!files.ok()) return failed(files.status());
  if (files->empty()) {
    saved_after_ = 0;
    log_warning("a checkpoint was abandoned: a parameter server was lost during the write");
    return;
  }
  log_info("saved {}", fmt::join(*files, ", "));
}

void CheckpointSchedule::failed(const absl::Status& why) {
  saved_after_ = 0;
  log_warning("a checkpoint failed, training continues: {}", message_of(why));
}

// A failure here is the result of the run: no later save could repair it.
absl::Status CheckpointSchedule::at_end(bool unchanged) {
  if (pending_) take_outcome();
  // The check follows the outcome: a save that has failed is repeated.
  if (unchanged && saved_after_ > 0) return absl::OkStatus();
  if (!variables_.saves_checkpoints()) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> files = variables_.save_checkpoint();
  if (files.ok()) log_info("saved {}", fmt::join(*files, ", "));
  return files.status();
}

}  // namespace gradrail::worker
