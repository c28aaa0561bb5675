// The calls of ControlService that save: snapshots between two updates, files beside the run.
#include <algorithm>
#include <chrono>
#include <future>

#include "base/status.h"
#include "ps/checkpoint_retention.h"
#include "ps/control_service.h"
#include "ps/control_status.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// A call holds a server thread no longer than this.
constexpr uint32_t kLongestPatienceMs = 5'000;

uint64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// Of all shards at once: they stand still while they copy.
absl::Status take_snapshots(const std::vector<std::unique_ptr<Shard>>& shards, std::vector<Checkpoint>& snapshots) {
  snapshots.resize(shards.size());
  std::vector<std::future<absl::StatusOr<Checkpoint>>> copies;
  for (size_t i = 0; i < shards.size(); ++i) {
    copies.push_back(std::async(std::launch::async, [&shard = *shards[i], memory = std::move(snapshots[i])]() mutable {
      return shard.snapshot(std::move(memory));
    }));
  }
  absl::Status first_error;
  for (size_t i = 0; i < shards.size(); ++i) {
    absl::StatusOr<Checkpoint> copy = copies[i].get();
    first_error.Update(copy.status());
    if (copy.ok()) snapshots[i] = *std::move(copy);
  }
  return first_error;
}

/// Of bucket 0 of the first shard that has one.
uint64_t step_of(const std::vector<Checkpoint>& snapshots) {
  uint64_t step = 0;
  for (const Checkpoint& snapshot : snapshots) {
    const auto& versions = snapshot.header.bucket_versions;
    if (!versions.empty()) step = std::max(step, versions[0]);
  }
  return step;
}

}  // namespace

absl::Status ControlService::heard(const proto::Member& member) {
  std::lock_guard lock(mutex_);
  return coordinator_.heard(member.task_index(), member.incarnation(), Clock::now());
}

grpc::Status ControlService::Checkpoint(grpc::ServerContext*, const proto::CheckpointRequest* request,
                                        proto::CheckpointReply* reply) {
  const absl::Status live = heard(request->member());
  return to_grpc(live.ok() ? save(*request, *reply) : live);
}

absl::Status ControlService::save(const proto::CheckpointRequest& request, proto::CheckpointReply& reply) {
  if (options_.checkpoint_dir.empty()) {
    return absl::FailedPreconditionError("checkpoint: this ps task was started without --checkpoint_dir");
  }
  std::lock_guard setup_lock(setup_mutex_);
  // All may have begun again while this call waited.
  GRADRAIL_RETURN_IF_ERROR(heard(request.member()));
  if (!agreed_.has_value()) return absl::UnavailableError("checkpoint: all are about to begin again");
  std::optional<std::vector<ps::Checkpoint>> snapshots = writer_.take_memory();
  if (!snapshots.has_value()) {
    return absl::AlreadyExistsError("checkpoint: the one before is still being written (is the disk too slow?)");
  }
  GRADRAIL_RETURN_IF_ERROR(take_snapshots(shards_, *snapshots));
  const SavedSet set = {.global_step = request.has_global_step() ? request.global_step() : step_of(*snapshots),
                        .saved_us = request.has_global_step() ? request.saved_us() : now_us()};
  for (ps::Checkpoint& snapshot : *snapshots) {
    snapshot.header.schema = agreed_->schema;
    snapshot.header.global_step = set.global_step;
    snapshot.header.saved_us = set.saved_us;
  }
  reply.set_global_step(set.global_step);
  reply.set_saved_us(set.saved_us);
  for (std::string& file : writer_.write(set, *std::move(snapshots))) reply.add_files(std::move(file));
  return absl::OkStatus();
}

grpc::Status ControlService::CheckpointOutcome(grpc::ServerContext*, const proto::CheckpointOutcomeRequest* request,
                                               proto::CheckpointOutcomeReply* reply) {
  if (const absl::Status live = heard(request->member()); !live.ok()) return to_grpc(live);
  const SavedSet set = {.global_step = request->global_step(), .saved_us = request->saved_us()};
  const std::optional<absl::Status> written =
      writer_.outcome(set, std::chrono::milliseconds(std::min(request->patience_ms(), kLongestPatienceMs)));
  reply->set_written(written.has_value());
  if (!written.has_value()) return grpc::Status::OK;
  if (!written->ok()) return to_grpc(*written);
  saved_at_.store(Clock::now().time_since_epoch().count());
  if (request->all_written()) {
    const absl::StatusOr<size_t> removed = remove_older_sets(options_.checkpoint_dir, set, options_.keep_checkpoints);
    // The set is there, which is what was asked for; the disk fills up, which somebody must hear of.
    if (!removed.ok()) spdlog::warn("{} (an older checkpoint stays)", message_of(removed.status()));
  }
  return grpc::Status::OK;
}

}  // namespace gradrail::ps
