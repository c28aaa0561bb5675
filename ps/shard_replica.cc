// A shard and its standby, from both ends: what has changed goes over, answers wait for it, and the standby goes on.
#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/cluster_spec.h"
#include "ps/control.pb.h"
#include "ps/data_message.h"
#include "ps/shard_tasks.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// The shard's workers wait meanwhile; the standby has just answered over the control plane.
constexpr auto kConnectDeadline = std::chrono::seconds(1);
/// Places for workers in a slot, to begin with.
constexpr uint32_t kFirstCapacity = 64;

}  // namespace

absl::Status Shard::replicate_to(const std::vector<Endpoint>& endpoints, const std::string& key) {
  const absl::StatusOr<absl::Status> done = on_owner([this, endpoints, key]() -> absl::Status {
    if (!is_set_up_) return absl::FailedPreconditionError("the shard is not set up yet");
    replica_unsure_ = replica_unsure_ || (replica_ != nullptr && replica_->holding());
    replica_.reset();
    replica_told_level_ = false;
    std::string refused;
    for (const Endpoint& endpoint : endpoints) {
      const absl::Status opened = open_replica(endpoint, key);
      if (opened.ok()) return absl::OkStatus();
      refused += fmt::format("{}{}: {}", refused.empty() ? "" : "; ", endpoint.transport, message_of(opened));
    }
    return absl::UnavailableError(refused.empty() ? "the two have no transport in common" : refused);
  });
  return done.ok() ? *done : done.status();
}

absl::Status Shard::open_replica(const Endpoint& endpoint, const std::string& key) {
  const auto context = std::find_if(contexts_.begin(), contexts_.end(),
                                    [&](const auto& open) { return open->name() == endpoint.transport; });
  if (context == contexts_.end()) return absl::UnavailableError("it is not in use here");
  BucketState state;
  if (bucket_count() > 0) protocol_->export_bucket(0, state);
  while (replica_capacity_ < std::max<size_t>(kFirstCapacity, 2 * state.done.size())) {
    replica_capacity_ = std::max(kFirstCapacity, 2 * replica_capacity_);
  }
  ReplicaLayout layout(setup_.map, setup_.shard_index, state_vectors(setup_.optimizer.kind), replica_capacity_);
  absl::StatusOr<std::unique_ptr<ReplicaSender>> sender =
      ReplicaSender::open(**context, endpoint.address, key, setup_.shard_index, std::move(layout), *protocol_, *store_,
                          registered_, Clock::now() + kConnectDeadline);
  if (!sender.ok()) return sender.status();
  replica_ = *std::move(sender);
  held_.resize(bucket_count());
  spdlog::info("{}: standby over {}", options_.name, replica_->describe());
  return absl::OkStatus();
}

void Shard::go_alone() {
  on_owner([this] {
    replica_.reset();
    replica_unsure_ = false;
    release_all();
    return true;
  }).IgnoreError();
}

void Shard::changed(uint32_t bucket) {
  if (replica_ != nullptr) replica_->changed(bucket);
}

bool Shard::holds(const Action& action) {
  const bool holding = replica_ != nullptr && replica_->holding() && replica_->is_behind(action.bucket);
  if (!holding && !replica_unsure_) return false;
  // Unsure: whatever the standby has, it may be another's by now.
  held_[action.bucket].push_back({action, holding ? replica_->changes(action.bucket) : UINT64_MAX});
  return true;
}

void Shard::release(uint32_t bucket) {
  std::vector<Held>& held = held_[bucket];
  const uint64_t acknowledged = replica_->acknowledged(bucket);
  size_t kept = 0;
  for (Held& one : held) {
    if (one.change <= acknowledged) {
      answer(one.answer);
    } else {
      if (&held[kept] != &one) held[kept] = std::move(one);
      ++kept;
    }
  }
  held.resize(kept);
}

void Shard::release_all() {
  for (std::vector<Held>& bucket : held_) {
    for (const Held& one : bucket) answer(one.answer);
    bucket.clear();
  }
}

/// It repeats what is unanswered when it comes back.
void Shard::forget_held(WorkerIndex worker) {
  for (std::vector<Held>& bucket : held_) {
    std::erase_if(bucket, [&](const Held& one) { return one.answer.worker == worker; });
  }
}

void Shard::handle_replica(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  if (completion.kind == Kind::put_arrived) {
    const std::optional<uint32_t> bucket = replica_->on_notice(completion.immediate);
    if (bucket.has_value() && !replica_unsure_) release(*bucket);
  } else if (completion.kind == Kind::message) {
    replica_->on_message(completion.message);
    if (replica_->phase() == ReplicaSender::Phase::filling || replica_->holding()) {
      // It has said Welcome, and so begins from nothing: it cannot have taken over, and will not before it is level.
      replica_unsure_ = false;
      release_all();
    }
  } else if (completion.kind == Kind::peer_lost) {
    replica_->on_lost(message_of(completion.cause));
  }
}

void Shard::watch_replica() {
  replica_in_need_ = replica_->advance();
  if (replica_->phase() == ReplicaSender::Phase::lost) return lose_replica();
  if (replica_->phase() != ReplicaSender::Phase::level || replica_told_level_) return;
  replica_told_level_ = true;
  if (options_.on_replica) options_.on_replica("");
}

void Shard::lose_replica() {
  replica_unsure_ = replica_unsure_ || replica_told_level_;
  const std::string cause = fmt::format("{}: {}", replica_->describe(), replica_->why());
  replica_.reset();
  replica_in_need_ = false;
  if (!replica_unsure_) release_all();
  if (options_.on_replica) options_.on_replica(cause);
}

absl::Status Shard::expect_primary(const std::string& key) {
  return on_owner([this, key] {
           if (ShardPeer* former = primary(); former != nullptr) drop(former);
           primary_key_ = key;
           was_level_ = was_outdated_ = false;
           return true;
         })
      .status();
}

ShardPeer* Shard::primary() const {
  for (const auto& [connection, peer] : peers_) {
    if (peer->phase == ShardPeer::Phase::replica) return peer.get();
  }
  return nullptr;
}

void Shard::greet_replica(ShardPeer& peer, const proto::ReplicaHello& hello) {
  if (primary_key_.empty() || !same_bytes(hello.proof(), mac_of(primary_key_, {peer.challenge})) || !is_set_up_) {
    return refuse(peer, "this shard is not your standby: say so at the control plane first");
  }
  if (const absl::Status welcomed = welcome_replica(peer, hello); !welcomed.ok()) {
    refuse(peer, std::string(message_of(welcomed)));
  }
}

absl::Status Shard::welcome_replica(ShardPeer& peer, const proto::ReplicaHello& hello) {
  if (hello.shard_index() != setup_.shard_index) {
    return absl::InvalidArgumentError(
        fmt::format("shard {} there is shard {} here", hello.shard_index(), setup_.shard_index));
  }
  if (hello.capacity() > 2 * kMaxWorkers) {
    return absl::InvalidArgumentError(fmt::format("{} places for workers are too many", hello.capacity()));
  }
  if (ShardPeer* former = primary(); former != nullptr) {
    // housekeeping() closes it, since completions of it may already be on their way.
    if (former->is_settled()) ++unsettled_;
    former->phase = ShardPeer::Phase::dismissed;
    former->phase_deadline = Clock::now();
  }
  was_level_ = false;
  absl::StatusOr<std::unique_ptr<ReplicaReceiver>> receiver = ReplicaReceiver::open(
      *contexts_[peer.context_index], *peer.connection, hello.notices_key(),
      ReplicaLayout(setup_.map, setup_.shard_index, state_vectors(setup_.optimizer.kind), hello.capacity()),
      registered_, options_.place_memory);
  if (!receiver.ok()) return receiver.status();
  peer.receiver = *std::move(receiver);
  proto::ToWorker message;
  message.mutable_replica_welcome()->set_slots_key(peer.receiver->key());
  GRADRAIL_RETURN_IF_ERROR(send_message(*peer.connection, message));
  peer.phase = ShardPeer::Phase::replica;
  --unsettled_;
  return absl::OkStatus();
}

void Shard::take_replica(ShardPeer& peer, uint64_t immediate) {
  if (const absl::Status taken = peer.receiver->take(immediate, *protocol_, *store_); !taken.ok()) {
    return refuse(peer, std::string(message_of(taken)));
  }
  ++updates_;
  if (peer.backlog.empty()) ++unsettled_;
  peer.backlog.push_back(static_cast<uint32_t>(immediate));
  answer_replica(peer);
}

void Shard::answer_replica(ShardPeer& peer) {
  if (peer.backlog.empty()) return;
  while (!peer.backlog.empty() && peer.receiver->answer(peer.backlog.front())) peer.backlog.pop_front();
  if (peer.backlog.empty()) --unsettled_;
}

absl::Status Shard::may_take_over(const std::vector<uint64_t>& versions, bool cut) {
  const absl::StatusOr<absl::Status> may = on_owner([this, versions, cut]() -> absl::Status {
    if (primary() != nullptr && !cut) return absl::UnavailableError("its primary is alive");
    if (!is_set_up_ || !was_level_) {
      return absl::FailedPreconditionError("it did not have everything yet when its primary was lost");
    }
    if (versions.empty() && was_outdated_)
      return absl::FailedPreconditionError("a worker has seen more than it has: its primary went on without it");
    for (uint32_t i = 0; i < std::min<size_t>(versions.size(), bucket_count()); ++i) {
      if (versions[i] <= protocol_->version(i)) continue;
      was_outdated_ = true;
      return absl::FailedPreconditionError(
          fmt::format("it has version {} of bucket {}, and a worker has seen {}: its primary went on without it",
                      protocol_->version(i), i, versions[i]));
    }
    return absl::OkStatus();
  });
  return may.ok() ? *may : may.status();
}

absl::Status Shard::take_over(const std::vector<Successor>& members) {
  return on_owner([this, members] {
           if (ShardPeer* former = primary(); former != nullptr) drop(former);
           primary_key_.clear();
           actions_.clear();
           for (const Successor& member : members) {
             protocol_->add_worker(member.worker, member.incarnation);
             if (!member.live) protocol_->remove_worker(member.worker, member.incarnation, actions_);
           }
           actions_.clear();  // whoever would be answered repeats its question
           return true;
         })
      .status();
}

}  // namespace gradrail::ps
