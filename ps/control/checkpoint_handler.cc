#include "ps/control/checkpoint_handler.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/checkpoint/retention.h"
#include "ps/control/parent.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

/// A call occupies a thread of the server no longer than this.
constexpr uint32_t kLongestOutcomeWaitMs = 5'000;
/// A disk takes longer than this.
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

uint64_t now_us() {
  // Clock is not usable here: the time is compared between hosts, and in file names after a restart.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// All shards copy at the same time, because each one serves no worker while it copies.
absl::Status take_snapshots(const ShardSet& shards, std::vector<Checkpoint>& snapshots) {
  snapshots.resize(shards.size());
  std::vector<std::future<absl::StatusOr<Checkpoint>>> copies;
  for (size_t i = 0; i < shards.size(); ++i) {
    copies.push_back(std::async(std::launch::async, [&shard = shards[i], memory = std::move(snapshots[i])]() mutable {
      return shard.snapshot(std::move(memory));
    }));
  }
  absl::Status first_error;
  for (size_t i = 0; i < shards.size(); ++i) {
    absl::StatusOr<Checkpoint> copy = copies[i].get();
    // All futures are awaited before an error returns: their threads use the shards.
    first_error.Update(copy.status());
    if (copy.ok()) snapshots[i] = *std::move(copy);
  }
  return first_error;
}

/// The step of bucket 0 of the first shard that has buckets: a small model leaves the last shards empty.
uint64_t step_of(const std::vector<Checkpoint>& snapshots) {
  uint64_t step = 0;
  for (const Checkpoint& snapshot : snapshots) {
    const auto& versions = snapshot.header.bucket_versions;
    if (!versions.empty()) step = std::max(step, versions[0]);
  }
  return step;
}

}  // namespace

absl::Status CheckpointHandler::save(const proto::CheckpointRequest& request, proto::CheckpointReply& reply) {
  const Membership::Member member = to_member(request.member());
  // A worker that was replaced must not start a save.
  GRADRAIL_RETURN_IF_ERROR(context_.state.heard(member));
  if (context_.options.parent != nullptr) return save_at_parent(reply);
  if (context_.options.checkpoint_dir.empty()) {
    return absl::FailedPreconditionError("checkpoint: this ps task was started without --checkpoint_dir");
  }
  MutexLock setup_lock(setup_.mutex);
  // All tasks may have begun again while this call waited for the lock.
  GRADRAIL_RETURN_IF_ERROR(context_.state.heard(member));
  if (!setup_.agreement.exists())
    return absl::UnavailableError("checkpoint: all parameter servers are about to restart from one checkpoint");
  std::optional<std::vector<Checkpoint>> snapshots = writer_.take_memory();
  if (!snapshots.has_value()) {
    return absl::AlreadyExistsError(
        "checkpoint: the one before is still being written, for this worker or another one: save again later");
  }
  GRADRAIL_RETURN_IF_ERROR(take_snapshots(context_.shards, *snapshots));
  GRADRAIL_CHECK(snapshots->size() == context_.shards.size());
  // The first task that gets the request names the set, and the chief passes the name on to the others.
  const SavedSet set = {.global_step = request.has_global_step() ? request.global_step() : step_of(*snapshots),
                        .saved_us = request.has_global_step() ? request.saved_us() : now_us()};
  for (Checkpoint& snapshot : *snapshots) {
    // A shard has the range of its elements only, not the tensors.
    snapshot.header.schema = setup_.agreement.schema();
    snapshot.header.global_step = set.global_step;
    snapshot.header.saved_us = set.saved_us;
    snapshot.header.run = setup_.agreement.run();
  }
  reply.set_global_step(set.global_step);
  reply.set_saved_us(set.saved_us);
  for (std::string& file : writer_.write(set, *std::move(snapshots))) reply.add_files(std::move(file));
  return absl::OkStatus();
}

/// A node of a tree has no state: its parent saves.
absl::Status CheckpointHandler::save_at_parent(proto::CheckpointReply& reply) {
  Parent& parent = *context_.options.parent;
  GRADRAIL_RETURN_IF_ERROR(parent.begin_checkpoint());
  reply.set_saved_us(now_us());
  reply.add_files(fmt::format("files of {}", parent.name()));
  return absl::OkStatus();
}

absl::Status CheckpointHandler::outcome_at_parent(const proto::CheckpointOutcomeRequest& request,
                                                  proto::CheckpointOutcomeReply& reply) {
  const TimePoint deadline =
      Clock::now() + std::chrono::milliseconds(std::min(request.timeout_ms(), kLongestOutcomeWaitMs));
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool is_written, context_.options.parent->is_checkpoint_written());
    reply.set_written(is_written);
    if (is_written || Clock::now() >= deadline) return absl::OkStatus();
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

absl::Status CheckpointHandler::outcome(const proto::CheckpointOutcomeRequest& request,
                                        proto::CheckpointOutcomeReply& reply) {
  GRADRAIL_RETURN_IF_ERROR(context_.state.heard(to_member(request.member())));
  if (context_.options.parent != nullptr) return outcome_at_parent(request, reply);
  const SavedSet set = {.global_step = request.global_step(), .saved_us = request.saved_us()};
  const std::optional<absl::Status> written =
      writer_.outcome(set, std::chrono::milliseconds(std::min(request.timeout_ms(), kLongestOutcomeWaitMs)));
  reply.set_written(written.has_value());
  if (!written.has_value()) return absl::OkStatus();
  if (!written->ok()) return *written;
  saved_at_.store(Clock::now().time_since_epoch().count());
  // Only the chief has the outcome of all tasks. An incomplete set must not remove the last complete one.
  if (request.all_written()) {
    const ServerOptions& options = context_.options;
    const absl::StatusOr<RemovedSets> removed =
        remove_older_sets(options.checkpoint_dir, set, options.keep_checkpoints);
    // The save itself has succeeded. The disk fills up, which an operator must learn from the log.
    if (!removed.ok()) log_warning("{} (an older checkpoint stays)", message_of(removed.status()));
    if (removed.ok()) log_kept(set, removed->finite_step);
  }
  return absl::OkStatus();
}

/// Logs each set that stays once: a run that has diverged saves until it is stopped.
void CheckpointHandler::log_kept(const SavedSet& completed, std::optional<uint64_t> finite_step) {
  if (!finite_step.has_value() || kept_step_.exchange(*finite_step) == *finite_step) return;
  log_warning(
      "checkpoint of step {}: the parameters of the newest {} sets have NaN or infinity (--keep {}); the last set "
      "without "
      "them, of step {}, stays as well: remove the later ones to return to it",
      completed.global_step, context_.options.keep_checkpoints, context_.options.keep_checkpoints, *finite_step);
}

std::optional<double> CheckpointHandler::age_s() const {
  const Duration::rep saved = saved_at_.load();
  if (saved == 0) return std::nullopt;
  return seconds_since(TimePoint(Duration(saved)));
}

}  // namespace gradrail::ps
