#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/check.h"
#include "ps/control/membership.h"
#include "ps/shard/shard.h"

namespace gradrail::ps {

namespace proto {
class JoinReply;
class ReplicateReply;
}  // namespace proto

/// All shards of one ps task, for decisions that concern every one of them.
/// Threads  Any thread that does not hold ControlState::mutex. A shard answers when its thread is free, and that thread
///          may be reporting a loss at that moment.
class ShardSet {
 public:
  /// `shards` is complete before the first call arrives.
  explicit ShardSet(std::vector<std::unique_ptr<Shard>>& shards) : shards_(shards) {}

  size_t size() const { return shards_.size(); }
  auto begin() const { return shards_.begin(); }
  auto end() const { return shards_.end(); }
  Shard& operator[](size_t index) const {
    GRADRAIL_CHECK(index < shards_.size());
    return *shards_[index];
  }

  /// The member has left or was lost.
  void remove_member(const Membership::Member& member) const;
  /// The member was lost and the run with it: no step is applied without its gradients.
  void fence(const Membership::Member& member) const;
  /// The steps of the member are done, but it still pulls.
  void mark_finished(const Membership::Member& member) const;
  /// No step waits for these workers unless they join again.
  void stop_expecting(const std::vector<WorkerIndex>& workers) const;
  /// Every shard has initialized parameters.
  bool have_values() const;
  /// Appends the usable endpoints of each shard.
  void describe(proto::JoinReply& reply) const;
  void describe(proto::ReplicateReply& reply) const;

 private:
  std::vector<std::unique_ptr<Shard>>& shards_;
};

}  // namespace gradrail::ps
