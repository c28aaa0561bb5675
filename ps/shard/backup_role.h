#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"

namespace gradrail::ps {

namespace proto {
class JoinReplication;
}

/// A member as the former primary of a shard had it.
struct ShardSuccessor {
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  bool live = false;
};

/// State of a shard that a worker with a request for a takeover has received.
struct ShardClaim {
  std::vector<uint64_t> versions;  ///< versions of the buckets; empty: the control plane does not have them
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  std::vector<uint64_t> steps;  ///< async, ssp: of this incarnation, answered by the buckets; else empty
};

/// The part of a shard that is the backup of another one: it receives the primary's buckets, and takes over after it.
/// The connection is a ShardPeer in phase primary; there is one at most.
/// Threads  Owner thread of the shard.
class BackupRole {
 public:
  BackupRole(ShardEnvironment& environment, Partition& partition, PeerTable& peers)
      : environment_(environment), partition_(partition), peers_(peers) {}

  /// The shard that has this key may replicate to this one. A former primary is disconnected.
  void expect_primary(const std::string& key);
  void expect_no_primary() { primary_key_.clear(); }
  /// The shard begins again: it has none of its primary's state.
  void reset() { is_level_ = is_outdated_ = false; }

  // The connection to the primary.
  void accept_replication(ShardPeer& peer, const proto::JoinReplication& join);
  void on_level() { is_level_ = true; }
  void on_bucket(ShardPeer& peer, uint64_t immediate);
  /// Sends the acknowledgements in the backlog until the transport has no room.
  void acknowledge(ShardPeer& peer);
  uint64_t updates() const { return updates_; }

  /// Checks whether this shard can replace its primary. `is_primary_unreachable`: the control plane has lost the
  /// primary, although its connection to this shard may exist.
  /// Errors  FAILED_PRECONDITION: the shard never was level, or a worker has received a state that the shard does not
  ///         have. UNAVAILABLE: the primary is connected.
  absl::Status check_takeover(const ShardClaim& seen, bool is_primary_unreachable);
  void take_over(const std::vector<ShardSuccessor>& members);

 private:
  std::string what_it_lacks(const ShardClaim& seen) const;
  absl::Status open_receiver(ShardPeer& peer, const proto::JoinReplication& join);

  ShardEnvironment& environment_;
  Partition& partition_;
  PeerTable& peers_;
  std::string primary_key_;   ///< "": this shard is not a backup
  bool is_level_ = false;     ///< the shard has every state that its primary has shown in an answer
  bool is_outdated_ = false;  ///< a worker has received a later state
  uint64_t updates_ = 0;      ///< buckets received
};

}  // namespace gradrail::ps
