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

}  // namespace

absl::Status PrimaryRole::attach_backup(const std::vector<ShardEndpoint>& endpoints, const std::string& key) {
  if (!partition_.is_set_up()) return absl::FailedPreconditionError("the shard is not set up yet");
  gate_.on_attaching(progress());
  sender_.reset();
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
  // The gate keeps its answers: only an acknowledgement or detach_backup() releases them.
  GRADRAIL_ASSIGN_OR_RETURN(
      sender_, BackupSender::open(**context, partition_.store(), environment_.registered, std::move(options)));
  gate_.on_attached(partition_.bucket_count());
  log_info("{}: backup over {}", environment_.options.name, sender_->describe());
  return absl::OkStatus();
}

void PrimaryRole::detach_backup() {
  sender_.reset();
  gate_.on_detached(released_);
  answer_released();
}

void PrimaryRole::reset() {
  sender_.reset();
  gate_.reset();
  waits_for_room_ = false;
}

void PrimaryRole::answer_released() {
  for (const Action& answer : released_) answer_(answer);
  released_.clear();
}

void PrimaryRole::on_completion(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  GRADRAIL_CHECK(owns(completion.connection));
  if (completion.kind == Kind::put_arrived) {
    const std::optional<uint32_t> bucket = sender_->on_acknowledged(completion.immediate);
    if (bucket.has_value()) gate_.on_acknowledged(*bucket, sender_->progress(), released_);
  } else if (completion.kind == Kind::message) {
    sender_->on_message(completion.message);
    gate_.on_message(sender_->progress(), released_);
  } else if (completion.kind == Kind::peer_lost) {
    sender_->on_lost(message_of(completion.cause));
  }
  answer_released();
}

void PrimaryRole::advance() {
  if (sender_ == nullptr) return;
  waits_for_room_ = sender_->advance();
  if (sender_->phase() == BackupSender::Phase::lost) return on_sender_lost();
  if (gate_.report_level(sender_->progress()) && environment_.options.on_backup) environment_.options.on_backup("");
}

void PrimaryRole::on_sender_lost() {
  const std::string cause = fmt::format("{}: {}", sender_->describe(), sender_->why());
  sender_.reset();
  waits_for_room_ = false;
  gate_.on_lost(released_);
  answer_released();
  if (environment_.options.on_backup) environment_.options.on_backup(cause);
}

}  // namespace gradrail::ps
