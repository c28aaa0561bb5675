#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ps/shard/backup_role.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"
#include "ps/shard/registered_parameters.h"

namespace gradrail::ps {

namespace proto {
class JoinPath;
class Member;
}  // namespace proto

/// Takes a data connection from its acceptance to active. The messages are those of ps/protocol/control.proto:
///
///   shard                                   worker
///   Challenge                       →
///                                   ←       JoinPath: proof, region keys
///   maps the worker's memory
///   Welcome: key of the slots       →
///                                   ←       put of a pattern (ps/protocol/path_check.h)
///   compares it; put of a pattern   →       compares it
///                                   ←       Ready, when the worker changes to this connection
///   Active                          →
///
/// A worker may have several connections up to Ready; Active makes one of them its active peer. A JoinReplication
/// instead of JoinPath is that of the primary of this shard: BackupRole continues.
/// Errors   Each failure refuses the peer, which then reads the reason.
/// Threads  Owner thread of the shard.
class Handshake {
 public:
  Handshake(ShardEnvironment& environment, Partition& partition, const RegisteredParameters& parameters,
            PeerTable& peers, BackupRole& backup)
      : environment_(environment), partition_(partition), parameters_(parameters), peers_(peers), backup_(backup) {}

  void send_challenge(ShardPeer& peer);
  void on_message(ShardPeer& peer, absl::Span<const std::byte> bytes);
  /// A put with a notice has arrived before the peer is active.
  void on_pattern(ShardPeer& peer, uint64_t immediate);
  /// Continues what waited for a mapping, or for room in the transport.
  void advance(ShardPeer& peer);

 private:
  // handshake.cc
  void accept_join_path(ShardPeer& peer, const proto::JoinPath& join_path);
  bool proves(const ShardPeer& peer, const proto::Member& member, const std::string& proof) const;
  absl::Status import_offer(ShardPeer& peer, const proto::JoinPath& join_path);
  void map_memory(ShardPeer& peer);
  absl::Status send_welcome(ShardPeer& peer);
  void answer_pattern(ShardPeer& peer);
  void activate(ShardPeer& peer);

  // handshake_memory.cc
  absl::Status map_host_memory(ShardPeer& peer);
  void map_device_memory(ShardPeer& peer);
  absl::Status allocate_slots(ShardPeer& peer);
  absl::Status allocate_gpu_slots(ShardPeer& peer);
  absl::Status probe_mapping(const ShardPeer& peer);
  void pin(ShardPeer& peer);
  std::string check_device_memory(const DeviceVariables& mapped, uint64_t seed);
  std::string check_arrived_pattern(ShardPeer& peer);
  transport::LocalSlice pattern_source(const ShardPeer& peer) const;

  ShardEnvironment& environment_;
  Partition& partition_;
  const RegisteredParameters& parameters_;
  PeerTable& peers_;
  BackupRole& backup_;
};

}  // namespace gradrail::ps
