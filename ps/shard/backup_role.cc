#include "ps/shard/backup_role.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/mac.h"

namespace gradrail::ps {

void BackupRole::expect_primary(const std::string& key) {
  // A task runs between two turns of the event loop, so that the loop handles no completion of the peer now.
  if (ShardPeer* former = peers_.primary(); former != nullptr) peers_.close(*former);
  primary_key_ = key;
  is_level_ = is_outdated_ = false;
}

void BackupRole::accept_replication(ShardPeer& peer, const proto::JoinReplication& join) {
  if (primary_key_.empty() || !same_bytes(join.proof(), mac_of(primary_key_, {peer.challenge})) ||
      !partition_.is_set_up()) {
    return peers_.refuse(peer, "this shard is not the backup of yours: register at the control plane first");
  }
  if (const absl::Status opened = open_receiver(peer, join); !opened.ok()) {
    peers_.refuse(peer, std::string(message_of(opened)));
  }
}

absl::Status BackupRole::open_receiver(ShardPeer& peer, const proto::JoinReplication& join) {
  if (join.shard_index() != partition_.shard_index()) {
    return absl::InvalidArgumentError(
        fmt::format("shard {} there is shard {} here", join.shard_index(), partition_.shard_index()));
  }
  // The primary rounds up to twice its members. Without a limit the slots could take any amount of memory.
  if (join.capacity() > 2 * kMaxWorkers) {
    return absl::InvalidArgumentError(fmt::format("{} places for workers are too many", join.capacity()));
  }
  // close() is wrong here: a completion of the former connection may follow in the same turn (invariant 3 of
  // PeerTable).
  if (ShardPeer* former = peers_.primary(); former != nullptr) peers_.start_closing(*former, Clock::now());
  // The primary begins with empty slots: until it declares level again, this shard may be behind an answer.
  is_level_ = false;
  GRADRAIL_ASSIGN_OR_RETURN(
      std::unique_ptr<BackupReceiver> receiver,
      BackupReceiver::open(*environment_.contexts[peer.context_index], *peer.connection, join.notices_key(),
                           BackupLayout(partition_.map(), partition_.shard_index(),
                                        state_vectors(partition_.optimizer().kind), join.capacity()),
                           environment_.registered, environment_.options.place_memory));
  peer.receiver = std::move(receiver);
  proto::ToWorker message;
  message.mutable_replication_welcome()->set_slots_key(peer.receiver->key());
  GRADRAIL_RETURN_IF_ERROR(send_message(*peer.connection, message));
  peer.phase = ShardPeer::Phase::primary;
  peers_.update_unsettled(peer);
  return absl::OkStatus();
}

void BackupRole::on_bucket(ShardPeer& peer, uint64_t immediate) {
  GRADRAIL_CHECK(peer.receiver != nullptr);
  const absl::StatusOr<BucketState> state = peer.receiver->receive(immediate, partition_.store());
  if (!state.ok()) return peers_.refuse(peer, std::string(message_of(state.status())));
  const auto bucket = static_cast<uint32_t>(immediate);
  // Store and protocol change together, before the acknowledgement: the primary releases answers by it.
  partition_.protocol().import_bucket(bucket, *state);
  ++updates_;
  peer.backlog.push_back(bucket);
  acknowledge(peer);
}

void BackupRole::acknowledge(ShardPeer& peer) {
  GRADRAIL_CHECK(peer.phase == ShardPeer::Phase::primary);
  while (!peer.backlog.empty() && peer.receiver->acknowledge(peer.backlog.front())) peer.backlog.pop_front();
  peers_.update_unsettled(peer);
}

absl::Status BackupRole::check_takeover(const ShardClaim& seen, bool is_primary_unreachable) {
  if (peers_.primary() != nullptr && !is_primary_unreachable) return absl::UnavailableError("its primary is connected");
  if (!partition_.is_set_up() || !is_level_) {
    return absl::FailedPreconditionError("its state was incomplete when its primary was lost");
  }
  if (seen.versions.empty() && is_outdated_) {
    return absl::FailedPreconditionError("a worker has a newer version: its primary continued without it");
  }
  const std::string lacks = what_it_lacks(seen);
  if (lacks.empty()) return absl::OkStatus();
  // The flag stays for all workers: another one that has received less would be accepted, and a newer result be lost.
  is_outdated_ = true;
  return absl::FailedPreconditionError(fmt::format("{}: its primary continued without it", lacks));
}

/// Describes the steps that this backup lacks. A version is not enough in async and ssp. The workers that joined here
/// may have made more updates than the primary and the other workers.
std::string BackupRole::what_it_lacks(const ShardClaim& seen) const {
  const ShardProtocol& protocol = partition_.protocol();
  for (uint32_t i = 0; i < std::min<size_t>(seen.versions.size(), partition_.bucket_count()); ++i) {
    if (seen.versions[i] <= protocol.version(i)) continue;
    return fmt::format("it has version {} of bucket {}, and a worker has version {}", protocol.version(i), i,
                       seen.versions[i]);
  }
  for (uint32_t i = 0; i < partition_.bucket_count(); ++i) {
    const uint64_t steps = i < seen.steps.size() ? seen.steps[i] : 0;
    const uint64_t done = protocol.done_step(seen.worker, seen.incarnation, i).value_or(0);
    if (steps > done)
      return fmt::format("it has {} steps of worker {} in bucket {}, and the worker has made {}", done, seen.worker, i,
                         steps);
  }
  return "";
}

void BackupRole::take_over(const std::vector<ShardSuccessor>& members) {
  GRADRAIL_CHECK(partition_.is_set_up());  // check_takeover() was OK
  if (ShardPeer* former = peers_.primary(); former != nullptr) peers_.close(*former);
  primary_key_.clear();  // the former primary may still run: it must not write here again
  Actions dropped;       // a worker that would be answered now repeats its request
  for (const ShardSuccessor& member : members) {
    // Departed members are added too: the protocol keeps the steps of one that returns.
    partition_.protocol().add_former_member(member.worker, member.incarnation);
    if (!member.live) partition_.protocol().remove_worker(member.worker, member.incarnation, dropped);
  }
}

}  // namespace gradrail::ps
