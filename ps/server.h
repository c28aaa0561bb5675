#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/flight_recorder.h"
#include "base/memory.h"
#include "ps/ablation.h"
#include "ps/security.h"
#include "transport/wait_set.h"

namespace gradrail::ps {

namespace proto {
class StatsReply;
}

/// One ps task: its shards and the control plane in front of them.
/// Threads  Any thread.
class Server {
 public:
  struct Options {
    uint32_t task_index = 0;
    std::string listen_address;   ///< "host:port" of the control plane; port 0: any
    std::string advertised_host;  ///< host of this task as workers reach it
    uint32_t shard_count = 1;
    std::vector<std::string> transports;    ///< to offer, in order
    bool rdma_only = true;                  ///< ucx and ofi: not without an RDMA device
    std::string ofi_provider = {};          ///< libfabric's name of the provider to use; "": the best
    std::vector<std::string> worker_names;  ///< of the cluster specification
    transport::WaitPolicy wait;
    std::string partner = {};     ///< "host:port" of the ps task that is this one's standby, or the other way; "": none
    bool begins_as_standby = {};  ///< of the two
    std::string device = "host";  ///< where parameters and the optimizer's state lie: "host" or "gpu:N"
    std::string checkpoint_dir;   ///< "": no checkpoints
    uint32_t keep_checkpoints = 0;  ///< complete sets, of which older ones are removed; 0: all stay
    Duration silence_limit = std::chrono::seconds(4);
    uint32_t min_workers = 1;                          ///< a loss that leaves fewer ends the run
    Duration return_limit = std::chrono::seconds(30);  ///< for somebody to come back when the last worker was lost
    Duration away_limit = std::chrono::seconds(90);    ///< … when all have gone to look for a ps that was lost
    /// Told what people want to know of a good run; may be empty. Called from any thread.
    std::function<void(const std::string&)> console = nullptr;
    /// Where shards run and their memory lies: both are called in the thread of that shard, and may be empty.
    std::function<void(uint32_t shard)> on_shard_thread = nullptr;
    std::function<void(uint32_t shard, const MemorySpan&)> place_memory = nullptr;
    size_t marks = 0;  ///< room of each shard's flight recorder
    /// Given what they have, by wait_finished(), whenever a worker's or a watcher's call asks for it or `*dump_signals`
    /// has grown. May be empty.
    std::function<void(const std::vector<Mark>&)> dump = nullptr;
    const std::atomic<uint32_t>* dump_signals = nullptr;
    Ablation ablation = {};
    Security security = {};
  };

  /// Errors  FAILED_PRECONDITION: the address cannot be used, or no transport can (names it and why), or others than
  ///         this host's could use it and nothing keeps strangers out. As store_maker()
  ///         for the device.
  static absl::StatusOr<std::unique_ptr<Server>> start(const Options& options);
  ~Server();

  uint16_t port() const;

  /// Waits until the run is over (everybody of the cluster specification has come and gone) or `stop` becomes true
  /// and for `farewell` longer while there are workers, for those who were told to stop at the same moment and want to
  /// save. Says for whom it waits every 10 s. Errors  ABORTED: why the run was given up.
  absl::Status wait_finished(const std::atomic<bool>& stop, Duration farewell = Duration::zero());

  /// Lines about the run for people: global step, updates, bytes per path.
  std::vector<std::string> summary();

  /// The figures of now, as the control plane tells them.
  absl::StatusOr<proto::StatsReply> stats();

  /// What the flight recorders of all shards have.
  std::vector<Mark> marks();

  /// Where the parameters of each shard lie; empty spans before the first worker has joined.
  std::vector<MemorySpan> parameters_memory();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::ps
