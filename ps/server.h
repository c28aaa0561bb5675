#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/server_options.h"

namespace gradrail::ps {

namespace proto {
class StatsReply;
}

/// A ps task: its shards and the control plane in front of them.
/// Threads  Any thread.
class Server {
 public:
  using Options = ServerOptions;

  /// Errors  FAILED_PRECONDITION: the address cannot be used; no transport can be used (names each and the reason);
  ///         or other hosts can reach the address without authentication. As store_maker() for the device.
  static absl::StatusOr<std::unique_ptr<Server>> start(const Options& options);
  ~Server();

  uint16_t port() const;

  /// Waits until the run is over: every worker of the cluster specification has joined and left. When `stop` becomes
  /// true it waits up to `grace_period` longer while there are workers, because workers that were stopped at the same
  /// moment still save. Logs every 10 s the workers that have not joined yet.
  /// Errors  ABORTED: why the run was aborted.
  absl::Status wait_finished(const std::atomic<bool>& stop, Duration grace_period = Duration::zero());

  /// wait_finished() reads `stop` and Options::dump_signals now instead of at its next interval.
  void wake();

  /// Lines about the run for people: global step, updates, bytes per path.
  std::vector<std::string> summary();

  /// The present figures, as the control plane reports them.
  absl::StatusOr<proto::StatsReply> stats();

  /// Marks in the flight recorders of all shards.
  std::vector<Mark> marks();

  /// Memory of the parameters of each shard; empty spans before the first worker has joined.
  std::vector<MemorySpan> parameters_memory();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::ps
