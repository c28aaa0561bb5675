#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "base/memory.h"
#include "gradrail/clock.h"
#include "ps/protocol/security.h"
#include "ps/store/ablation.h"
#include "transport/wait_set.h"

namespace gradrail::ps {

class ControlDialer;
class ControlListener;
class Parent;
struct ControlPlane;

/// Settings of one ps task. They have a separate header because the control plane, which the server owns, reads them as
/// well.
/// Threads  Functions are called from any thread unless noted, and may be empty.
struct ServerOptions {
  uint32_t task_index = 0;
  std::string listen_address;   ///< "host:port" of the control plane; port 0: any
  std::string advertised_host;  ///< host of this task as workers reach it
  uint32_t shard_count = 1;
  std::vector<std::string> transports;  ///< transports to offer, in order
  std::vector<std::string> rails = {};  ///< addresses at which shards listen for data; empty: that of the control plane
  uint16_t data_port = 0;               ///< port of shard 0 of task 0, by data_ports_of(); 0: the kernel chooses all
  bool rdma_only = true;                ///< ucx and ofi: only with an RDMA device
  std::string ofi_provider = {};        ///< libfabric's name of the provider to use; "": the best
  Duration path_timeout = std::chrono::seconds(10);  ///< a path that acknowledges nothing for so long is lost
  std::vector<std::string> worker_names;             ///< names in the cluster specification
  WaitPolicy wait = kAdaptiveWait;
  std::string replication_peer = {};  ///< "host:port" of the backup of this task, or of its primary; "": none
  /// The present address of the replication peer, for the thread of its link; `replication_peer` is its name then.
  /// Empty: `replication_peer` is the address.
  std::function<absl::StatusOr<std::string>()> find_replication_peer = nullptr;
  bool begins_as_backup = {};  ///< this one of the two tasks begins as the backup
  /// The next level of a tree, which has the parameters; null: this task has them. `device` is "host" then, and
  /// `checkpoint_dir` is empty.
  std::shared_ptr<Parent> parent = {};
  std::string device = "host";    ///< place of parameters and of the optimizer's state: "host" or "gpu:N"
  std::string checkpoint_dir;     ///< "": no checkpoints
  std::string run_name = {};      ///< equal for all ps tasks of a run; locks checkpoint_dir; "": no lock
  uint32_t keep_checkpoints = 0;  ///< number of complete sets to keep; 0: all
  Duration heartbeat_timeout = std::chrono::seconds(4);
  uint32_t min_workers = 1;                          ///< a loss that leaves fewer ends the run
  Duration return_limit = std::chrono::seconds(30);  ///< time for a return after the last worker was lost
  Duration away_limit = std::chrono::seconds(90);    ///< time for a return from the search for a lost ps
  /// Receives notifications for users about a healthy run.
  std::function<void(const std::string&)> console = nullptr;
  /// Called when this task has admitted a worker.
  std::function<void(uint32_t worker)> on_join = nullptr;
  /// Called in the thread of that shard, on the node where the shard runs and where its memory is.
  std::function<void(uint32_t shard)> on_shard_thread = nullptr;
  std::function<void(uint32_t shard, const MemorySpan&)> place_memory = nullptr;
  /// Memory of a shard for the gradients of one worker that are under way; 0: room for all. A quorum has room for all.
  uint64_t slot_bytes = uint64_t{32} << 20;
  size_t marks = 0;  ///< capacity of each shard's flight recorder
  /// Receives the marks of all flight recorders, from wait_finished(), when a call requests them or `*dump_signals` has
  /// grown.
  std::function<void(const std::vector<Mark>&)> dump = nullptr;
  const std::atomic<uint32_t>* dump_signals = nullptr;
  Ablation ablation = {};
  Security security = {};
  // The control plane; empty: gRPC. Simulations replace both.
  std::shared_ptr<ControlDialer> dialer = {};  ///< dials connections to the replication peer
  std::function<absl::StatusOr<std::unique_ptr<ControlListener>>(ControlPlane&, const ServerOptions&)> listen = {};
};

}  // namespace gradrail::ps
