#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/resource_limits.h"
#include "bench/layers/traffic_matrix.h"
#include "bench/report/figure.h"
#include "bench/report/report.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/store/ablation.h"

namespace gradrail::bench {

class Member;
class RankCoordinator;

inline constexpr uint32_t kMaxShards = 64;  ///< limit of one server

/// Exchanges between real tasks, a ps::Server and workers, each in a separate process.
struct ExchangeLoad {
  std::string transport = "shm";
  std::string ofi_provider;
  bool rdma_only = false;
  bool encrypted = false;  ///< value of `--encrypt-data` of training
  std::string bind_host = "127.0.0.1";
  std::vector<std::string> rails;  ///< addresses of the servers' links; empty: bind_host
  uint32_t streams = 0;            ///< TransportOptions::streams
  std::string gpu;  ///< "gpu:N": gradients and parameters of workers are in that GPU's memory; "": in the host's
  GpuTransfer gpu_transfer = GpuTransfer::staged;  ///< the only way out of that memory
  std::string ps_device = "host";                  ///< place of the server's parameters
  uint64_t bytes = 0;                              ///< size of one worker's gradient
  uint32_t workers = 1;
  uint32_t shards = 1;                     ///< number of shards of each server
  RankCoordinator* coordinator = nullptr;  ///< the processes of the run; null: forked on this host
  /// The processes that take part; null: all processes of the run.
  struct Pair {
    Member* server = nullptr;
    Member* worker = nullptr;
  } pair{};
  std::vector<std::string> servers;  ///< addresses on which they listen; filled in as they start
  Mode mode = {.kind = ModeKind::sync};
  OptimizerKind optimizer = OptimizerKind::sgd;
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  uint32_t bucket_bytes = 0;  ///< 0: the client's default
  bool touch = false;         ///< the gradient is written anew before each exchange, as training does; not timed
  bool block = false;         ///< processes block instead of spinning
  bool check = true;
  bool stages = false;      ///< a second run, shorter, measures the stages of the time
  ps::Ablation ablation;    ///< any part of it disables the check of results
  double seconds = 0.3;     ///< timed
  uint64_t iterations = 0;  ///< timed, of each worker; 0: as many as fill `seconds`
  uint64_t warmup = 0;      ///< 0: a tenth of those
  /// A model's layers instead of one gradient: [elements, microseconds into the step at which its gradient is ready].
  struct Layer {
    uint64_t elements = 0;
    double ready_us = 0.0;
  };
  std::vector<Layer> layers;  ///< sorted by the time at which they become ready
  TrafficMatrix traffic;      ///< bytes of each worker to each shard of all servers; empty: `bytes` of each worker
};

struct ExchangeResult {
  Figure figure;               ///< figure of all workers: median of their p50, worst of their tails
  std::vector<Times> workers;  ///< each one's
  std::vector<Rank> ranks;     ///< ranks of all processes
  double seconds = 0.0;        ///< time of the timed part, the longest worker's
  double join_seconds = 0.0;   ///< time until all workers have joined, the longest worker's
  /// Times per gradient of a worker, over all shards of the first server; empty: it is on another host.
  std::vector<std::pair<std::string, double>> shard;
};

/// The parts that a load leaves out, in words; "": none.
std::string left_out(const ExchangeLoad& load);

/// The time after which a run has failed that ends no exchange. Exchanges that end later extend it (Patience).
Duration time_limit(const ExchangeLoad& load);

/// Whether the memory of this host can hold a run of `load`: gradients and parameters of its workers, parameters and
/// optimizer state of its servers. A run needs more than that.
/// `remedy`: the end of the message, beside "fewer workers".
/// Errors  RESOURCE_EXHAUSTED: the bytes that are needed, those that are available, and the limit.
absl::Status check_memory(const ExchangeLoad& load, std::string_view remedy,
                          const SystemFiles& files = read_system_file);

/// Runs the exchange; the result's figure.failed has the reason if there is none. Figures are of one exchange: from
/// before the push to after the last fresh parameter; with layers, of one step.
ExchangeResult run_exchange(const ExchangeLoad& load);

}  // namespace gradrail::bench
