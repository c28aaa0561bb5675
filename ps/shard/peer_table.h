#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/rate_limited_log.h"
#include "ps/shard/environment.h"
#include "ps/shard/peer.h"

namespace gradrail::ps {

/// Bytes over all connections of one path, for statistics.
struct PathTraffic {
  std::string path;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
};

/// The members of a shard and their data connections: which are admitted, connected, absent or removed.
///
/// Invariants
///   1. A worker has at most one active peer.
///   2. `unsettled_` is the number of peers for which is_settled() is false. The event loop scans the peers only while
///      it is not 0, or while a member is absent.
///   3. Only close() frees a peer. The event loop may handle a completion of a peer at any other time: refuse() and
///      start_closing() leave the peer to expire().
/// Threads  Owner thread of the shard.
class PeerTable {
 public:
  struct Events {
    std::function<void(ShardPeer&)> on_active;          ///< before the first arrival
    std::function<void(const ShardPeer&)> on_inactive;  ///< of an active peer, before its slots end
  };
  PeerTable(ShardEnvironment& environment, Events events);
  /// Closes all connections, without calls of on_inactive.
  ~PeerTable();
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  // Members.

  /// A data connection that proves to have this key belongs to this member.
  void admit(WorkerIndex worker, uint64_t incarnation, const std::string& key);
  struct Admission {
    uint64_t incarnation = 0;
    std::string key;
  };
  /// Null: the worker is not admitted.
  const Admission* admission(WorkerIndex worker) const;
  /// Withdraws the admission and closes all connections of the member, the active one and those beside it.
  void remove_member(WorkerIndex worker, uint64_t incarnation);
  void withdraw_admissions() { admitted_.clear(); }
  /// Marks that the task will end. Members lose their connections and connect again immediately: a refusal is then
  /// expected.
  void begin_end() {
    is_ending_ = true;
    withdraw_admissions();
  }
  bool is_ending() const { return is_ending_; }
  void forget_absent() { absent_.clear(); }

  // Connections.

  ShardPeer& accept(transport::Connection& connection, size_t context_index);
  static ShardPeer& peer_of(const transport::Connection& connection);
  /// The active peer of a worker; null: none.
  ShardPeer* active(WorkerIndex worker) const { return worker < active_.size() ? active_[worker] : nullptr; }
  /// The connection to the primary; null: this shard has none.
  ShardPeer* primary() const;
  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& [connection, peer] : peers_) visit(*peer);
  }

  /// Makes a validated peer the active one of its worker. A former one is removed.
  void activate(ShardPeer& peer);
  /// Sends the reason to the peer and starts to close it. Reports an active worker as lost.
  void refuse(ShardPeer& peer, const std::string& why);
  /// Takes the peer out of service; its admission stays. expire() closes the peer after `deadline`.
  void start_closing(ShardPeer& peer, TimePoint deadline);
  /// The transport has lost the connection. An active worker is absent from now on, and may return.
  void on_lost(ShardPeer& peer, const std::string& cause);
  void close(ShardPeer& peer);
  /// Closes the peers that have sent JoinPath: they refer to the store.
  void close_joined();
  /// Closes peers after their deadline. Reports members that have been absent for too long as lost.
  void expire(TimePoint now);

  /// Counts the peer as settled or unsettled. To be called after each change of its phase or backlog (invariant 2).
  void update_unsettled(ShardPeer& peer);
  bool has_unsettled() const { return unsettled_ > 0; }
  bool needs_visit() const { return unsettled_ > 0 || !absent_.empty(); }

  /// Traffic of each path, connections of the past included.
  std::vector<PathTraffic> traffic() const;

 private:
  struct Absent {  ///< a member without its data connection
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    TimePoint deadline;
    std::string cause;
  };
  using Traffic = std::map<std::string, PathTraffic>;

  void deactivate(ShardPeer& peer);
  void tell_lowest(WorkerIndex removed);
  bool is_active(const ShardPeer& peer) const { return active(peer.worker) == &peer; }
  static void add_traffic(const ShardPeer& peer, Traffic& traffic);

  ShardEnvironment& environment_;
  const Events events_;
  std::map<WorkerIndex, Admission> admitted_;
  bool is_ending_ = false;
  std::unordered_map<const transport::Connection*, std::unique_ptr<ShardPeer>> peers_;
  std::vector<ShardPeer*> active_;  ///< active peer of each worker
  std::vector<Absent> absent_;
  size_t unsettled_ = 0;
  Traffic past_traffic_;
  RateLimitedLog rate_limited_log_;
  RateLimitedLog losses_{std::chrono::seconds(10), 16};  ///< losses of active peers; a host with several can fail
};

}  // namespace gradrail::ps
