#include "ps/shard/primary_role.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

/// The workers of the shard wait during the connection. The backup has just answered over the control plane, so that it
/// is reachable or lost.
constexpr auto kConnectDeadline = std::chrono::seconds(1);
/// A slot of 64 workers costs 2 KiB per bucket; a larger one needs a new connection.
constexpr uint32_t kFirstCapacity = 64;
/// The change of an answer that no acknowledgement releases.
constexpr uint64_t kNever = UINT64_MAX;

}  // namespace

absl::Status PrimaryRole::attach_backup(const std::vector<ShardEndpoint>& endpoints, const std::string& key) {
  if (!partition_.is_set_up()) return absl::FailedPreconditionError("the shard is not set up yet");
  // A level backup may have taken over already. A new connection alone does not disprove that (invariant 3).
  is_unsure_ = is_unsure_ || (sender_ != nullptr && sender_->is_holding());
  sender_.reset();
  was_reported_level_ = false;
  std::string refused;
  for (const ShardEndpoint& endpoint : endpoints) {
    const absl::Status opened = open_sender(endpoint, key);
    if (opened.ok()) return absl::OkStatus();
    refused += fmt::format("{}{}: {}", refused.empty() ? "" : "; ", endpoint.transport, message_of(opened));
  }
  return absl::UnavailableError(refused.empty() ? "the two have no transport in common" : refused);
}

absl::Status PrimaryRole::open_sender(const ShardEndpoint& endpoint, const std::string& key) {
  const auto& contexts = environment_.contexts;
  const auto context = std::find_if(contexts.begin(), contexts.end(),
                                    [&](const auto& open) { return open->name() == endpoint.transport; });
  if (context == contexts.end()) return absl::UnavailableError("it is not in use here");
  // Twice the members of today: workers that join later must not force a new connection each time.
  BucketState state;
  if (partition_.bucket_count() > 0) partition_.protocol().export_bucket(0, state);
  while (capacity_ < std::max<size_t>(kFirstCapacity, 2 * state.done.size())) {
    capacity_ = std::max(kFirstCapacity, 2 * capacity_);
  }
  BackupSender::Options options = {
      .address = endpoint.address,
      .key = key,
      .shard_index = partition_.shard_index(),
      .layout = BackupLayout(partition_.map(), partition_.shard_index(), state_vectors(partition_.optimizer().kind),
                             capacity_),
      .export_bucket = [this](uint32_t bucket,
                              BucketState& exported) { partition_.protocol().export_bucket(bucket, exported); },
      .deadline = Clock::now() + kConnectDeadline};
  // held_ keeps its answers: only an acknowledgement or detach_backup() releases them.
  GRADRAIL_ASSIGN_OR_RETURN(
      sender_, BackupSender::open(**context, partition_.store(), environment_.registered, std::move(options)));
  held_.resize(partition_.bucket_count());
  spdlog::info("{}: backup over {}", environment_.options.name, sender_->describe());
  return absl::OkStatus();
}

void PrimaryRole::detach_backup() {
  sender_.reset();
  is_unsure_ = false;
  release_all();
}

void PrimaryRole::reset() {
  sender_.reset();
  held_.clear();
  is_unsure_ = waits_for_room_ = false;
}

bool PrimaryRole::hold_until_acknowledged(const Action& answer) {
  const bool is_behind = sender_ != nullptr && sender_->is_holding() && sender_->is_behind(answer.bucket);
  if (!is_behind && !is_unsure_) return false;
  GRADRAIL_CHECK(answer.bucket < held_.size());
  // When the shard is unsure no acknowledgement releases the answer: the state may belong to another primary by now.
  held_[answer.bucket].push_back({answer, is_behind ? sender_->changes(answer.bucket) : kNever});
  return true;
}

void PrimaryRole::release(uint32_t bucket) {
  GRADRAIL_CHECK(!is_unsure_ && bucket < held_.size());  // invariant 3
  std::vector<Held>& held = held_[bucket];
  const uint64_t acknowledged = sender_->acknowledged(bucket);
  size_t kept = 0;  // in place and in order: answers of one worker must not overtake each other
  for (Held& one : held) {
    if (one.change <= acknowledged) {
      answer_(one.answer);
    } else {
      if (&held[kept] != &one) held[kept] = std::move(one);
      ++kept;
    }
  }
  held.resize(kept);
}

void PrimaryRole::release_all() {
  for (std::vector<Held>& bucket : held_) {
    for (const Held& one : bucket) answer_(one.answer);
    bucket.clear();
  }
}

void PrimaryRole::forget_held(WorkerIndex worker) {
  for (std::vector<Held>& bucket : held_) {
    std::erase_if(bucket, [&](const Held& one) { return one.answer.worker == worker; });
  }
}

void PrimaryRole::on_completion(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  GRADRAIL_CHECK(owns(completion.connection));
  if (completion.kind == Kind::put_arrived) {
    // While unsure, an acknowledgement may come from a backup that serves workers by now.
    const std::optional<uint32_t> bucket = sender_->on_acknowledged(completion.immediate);
    if (bucket.has_value() && !is_unsure_) release(*bucket);
  } else if (completion.kind == Kind::message) {
    sender_->on_message(completion.message);
    if (sender_->phase() == BackupSender::Phase::filling || sender_->is_holding()) {
      // After its Welcome the backup begins with an empty state: it has not taken over, and will not before it is
      // level.
      is_unsure_ = false;
      release_all();
    }
  } else if (completion.kind == Kind::peer_lost) {
    sender_->on_lost(message_of(completion.cause));
  }
}

void PrimaryRole::advance() {
  if (sender_ == nullptr) return;
  waits_for_room_ = sender_->advance();
  if (sender_->phase() == BackupSender::Phase::lost) return on_sender_lost();
  if (sender_->phase() != BackupSender::Phase::level || was_reported_level_) return;
  was_reported_level_ = true;
  if (environment_.options.on_backup) environment_.options.on_backup("");
}

void PrimaryRole::on_sender_lost() {
  // advance() reports level in the call that announces it. An unreported backup cannot have taken over.
  is_unsure_ = is_unsure_ || was_reported_level_;
  const std::string cause = fmt::format("{}: {}", sender_->describe(), sender_->why());
  sender_.reset();
  waits_for_room_ = false;
  if (!is_unsure_) release_all();
  if (environment_.options.on_backup) environment_.options.on_backup(cause);
}

}  // namespace gradrail::ps
