#include "worker/client/session/checkpoint_save.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::worker {
namespace {

/// The time that one request waits at the ps: the end of this worker is delayed by no more.
constexpr uint32_t kTimeoutMs = 500;
/// A disk that takes longer does not work, and the run must end without it.
constexpr auto kWriteDeadline = std::chrono::minutes(10);

absl::Status wait_written(ControlLink& control, const ps::proto::CheckpointOutcomeRequest& request,
                          const std::atomic<bool>& abandoned) {
  const TimePoint deadline = Clock::now() + kWriteDeadline;
  while (!abandoned) {
    GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::CheckpointOutcomeReply reply, control.checkpoint_outcome(request));
    if (reply.written()) return absl::OkStatus();
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          fmt::format("{} has not written its checkpoint in {} minutes: does its disk hang?", control.name(),
                      kWriteDeadline.count()));
    }
  }
  return absl::CancelledError("no caller waits for the checkpoint any more");
}

}  // namespace

CheckpointSave::~CheckpointSave() { abandoned_ = true; }

absl::Status CheckpointSave::begin(const ps::proto::Member& member) {
  if (under_way()) return absl::FailedPreconditionError("the checkpoint before is still being written");
  ps::proto::CheckpointRequest request;
  *request.mutable_member() = member;
  files_.clear();
  for (const auto& control : controls_) {
    GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::CheckpointReply reply, control->checkpoint(request));
    // Updates of others arrive between two tasks' answers: the first one names the set, else it would never be whole.
    request.set_global_step(reply.global_step());
    request.set_saved_us(reply.saved_us());
    files_.insert(files_.end(), reply.files().begin(), reply.files().end());
  }
  // A disk takes seconds: a thread waits for it while the trainer computes.
  ps::proto::CheckpointOutcomeRequest outcome_request;
  *outcome_request.mutable_member() = member;
  outcome_request.set_global_step(request.global_step());
  outcome_request.set_saved_us(request.saved_us());
  outcome_request.set_timeout_ms(kTimeoutMs);
  outcome_ = std::async(std::launch::async, [this, outcome_request] { return watch(outcome_request); });
  return absl::OkStatus();
}

bool CheckpointSave::under_way() const {
  return outcome_.valid() && outcome_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

absl::StatusOr<std::vector<std::string>> CheckpointSave::finish() {
  if (!outcome_.valid()) return std::vector<std::string>{};
  const absl::Status outcome = outcome_.get();
  if (!outcome.ok()) return outcome;
  return std::exchange(files_, {});
}

absl::Status CheckpointSave::watch(ps::proto::CheckpointOutcomeRequest request) const {
  absl::Status first_error;
  // All of them, also after one has failed: a task that still writes would refuse the next save.
  for (const auto& control : controls_) first_error.Update(wait_written(*control, request, abandoned_));
  GRADRAIL_RETURN_IF_ERROR(first_error);
  // Now the set is whole. Only now may older sets be removed.
  request.set_all_written(true);
  return controls_.empty() ? absl::OkStatus() : wait_written(*controls_.front(), request, abandoned_);
}

}  // namespace gradrail::worker
