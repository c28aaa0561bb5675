#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ps/control/control_context.h"
#include "ps/control/replication_link.h"

namespace gradrail::ps {

/// The role of one of two ps tasks: the primary serves the workers, or its backup does. The primary sends its state
/// through a dedicated link, and waits for the backup's first answer before it serves.
///
/// Invariants
///   1. A task that was replaced serves no worker again in this process.
///   2. If two tasks both have the role that serves, the one with the higher term is right.
/// Threads  Any thread. check_serving() takes no lock, so that handlers may call it under theirs.
class Replication {
 public:
  explicit Replication(ControlContext& context);

  /// Sets the port on which this task listens.
  void set_port(uint16_t port) { port_ = port; }
  /// Opens the link to the replication peer, if any. Called once, when the shards exist and before the first call
  /// arrives.
  /// Errors   Those of check_exposure() and channel_credentials().
  absl::Status start();
  /// Reports from a shard's thread that the backup of the shard is level (""), or was lost.
  void report_shard(const std::string& cause);
  /// Waits until the backup has the present state, or there is no backup.
  void wait_for_backup();
  /// The run is over: the backup is informed.
  void end();
  /// Stops the link, before the shards are destroyed.
  void stop();

  bool has_peer() const { return link_ != nullptr; }
  /// Whether this task is the backup and has not taken over.
  bool is_backup() const { return is_backup_; }
  /// Random number of the process that began the run of this task: it stays the same when a backup takes over.
  uint64_t process() const { return process_; }
  /// Number of changes of the roles of the two tasks; more than 0 for a task that has taken over.
  uint64_t term() const { return term_; }
  /// The replication peer refused this task because they were started with different options.
  bool is_misconfigured() const { return is_misconfigured_; }
  /// State of the backup for people: "level", or what is missing; "" without a backup.
  std::string backup_state() const;
  std::string replication_peer_name() const;

  /// Records whether all workers of this task were lost. An isolated task then queries its backup before it serves.
  void set_deserted(bool deserted);
  /// UNAVAILABLE: the workers of this task have to contact the replication peer instead, or to retry.
  absl::Status check_serving() const;
  /// UNAVAILABLE: this task is the backup of a primary that serves.
  absl::Status still_backup_error() const;
  static absl::Status no_peer_error();

  /// The primary listens on this port. The backup of a local cluster needs it when its primary returns as its backup.
  void set_peer_port(uint32_t port);
  /// The replication peer has taken over. A task that has no run becomes its backup; otherwise its own run ends.
  void on_replaced();
  /// Continues as the successor of the primary's process.
  void take_over(uint64_t process, uint64_t term);

 private:
  std::string peer_address() const;
  absl::StatusOr<std::string> find_peer() const;
  void fill_message(proto::ReplicateRequest& message);
  void on_refused(const absl::Status& why);
  bool replication_peer_can_return() const;

  ControlContext& context_;
  std::atomic<uint64_t> process_;
  std::atomic<uint64_t> term_ = 0;
  std::atomic<bool> is_backup_;
  std::atomic<bool> was_replaced_ = false;
  std::atomic<bool> is_misconfigured_ = false;
  std::atomic<uint16_t> port_ = 0;         ///< 0: this task does not listen yet
  std::atomic<uint16_t> peer_port_ = 0;    ///< 0: unknown
  std::unique_ptr<ReplicationLink> link_;  ///< set once by start(); null: there is no replication peer
};

}  // namespace gradrail::ps
