#include "ps/control/shard_set.h"

#include <algorithm>

#include "base/net_address.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

void add_endpoints(const Shard& shard, proto::JoinReply::Shard& described) {
  for (const Shard::Endpoint& endpoint : shard.endpoints()) {
    // A worker needs no transport that this shard could not open.
    if (!endpoint.refused.empty()) continue;
    proto::JoinReply::Endpoint* message = described.add_endpoints();
    message->set_transport(endpoint.transport);
    message->set_address(without_scopes(endpoint.address));
    message->set_rails(without_scopes(endpoint.rails));
  }
}

}  // namespace

void ShardSet::remove_member(const Membership::Member& member) const {
  for (const auto& shard : shards_) shard->remove_member(member.worker, member.incarnation);
}

void ShardSet::fence(const Membership::Member& member) const {
  for (const auto& shard : shards_) shard->fence(member.worker, member.incarnation);
}

void ShardSet::mark_finished(const Membership::Member& member) const {
  for (const auto& shard : shards_) shard->mark_finished(member.worker, member.incarnation);
}

void ShardSet::stop_expecting(const std::vector<WorkerIndex>& workers) const {
  for (const auto& shard : shards_) shard->stop_expecting(workers);
}

bool ShardSet::have_values() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) {
    // A shard that stops or does not answer has no values to continue with.
    const absl::StatusOr<Shard::Stats> stats = shard->stats();
    return stats.ok() && stats->initialised;
  });
}

void ShardSet::describe(proto::JoinReply& reply) const {
  for (const auto& shard : shards_) add_endpoints(*shard, *reply.add_shards());
}

void ShardSet::describe(proto::ReplicateReply& reply) const {
  for (const auto& shard : shards_) add_endpoints(*shard, *reply.add_shards());
}

}  // namespace gradrail::ps
