#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "ps/protocol/security.h"
#include "ps/shard/peer_table.h"
#include "transport/wait_set.h"

namespace gradrail::aggregator {

struct AggregatorOptions {
  std::string listen_address;           ///< "host:port"; port 0: any. Data connections use the same host
  std::vector<std::string> transports;  ///< to offer and to use, in order
  bool rdma_only = true;                ///< ucx and ofi: only with an RDMA device
  std::string ofi_provider = {};        ///< libfabric's name of the provider to use; "": the best
  Duration path_timeout = std::chrono::seconds(10);
  transport::WaitPolicy wait = transport::kAdaptiveWait;
  uint64_t slot_bytes = uint64_t{32} << 20;  ///< as ServerOptions::slot_bytes
  ps::Security security = {};
  /// Receives a line for each session that starts, connects to its shard, or ends. From any thread.
  std::function<void(const std::string& text)> log = [](const std::string&) {};
};

struct AggregatorStats {
  size_t sessions = 0;
  size_t workers = 0;                  ///< attached now, counted once for each shard
  std::vector<ps::PathTraffic> paths;  ///< from and to workers, and those "to shard", of ended sessions too
};

/// An aggregator: sums the gradients of groups of workers on their way to the shards, for any number of runs. It has no
/// state that a run depends on: when it is lost, its workers take another aggregator, or connect to the shards.
/// Workers attach by the call Attach of the control plane; each group of a run has a Session for each shard.
/// Threads  Any thread.
class Aggregator {
 public:
  /// Errors  FAILED_PRECONDITION: the address cannot be used, or other hosts can reach it without authentication.
  static absl::StatusOr<std::unique_ptr<Aggregator>> start(const AggregatorOptions& options);
  ~Aggregator();

  uint16_t port() const;
  /// Ends the sessions that have had no worker for a minute. To be called now and then.
  void end_idle_sessions();
  size_t session_count() const;
  AggregatorStats stats() const;

 private:
  class Impl;
  explicit Aggregator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::aggregator
