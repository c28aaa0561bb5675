#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/suites/exchange_run.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::bench::predict {

/// The hosts and their network. Workers and ps processes run on different hosts, each ps on its own.
struct Cluster {
  uint32_t workers = 4;
  uint32_t ps = 1;
  uint32_t shards = 1;  ///< shards of each ps process
  uint32_t workers_per_host = 1;
  double nic_gbit = 100;  ///< line rate of a host's NIC in each direction
  double rtt_us = 10;     ///< round trip of two hosts without load

  uint32_t shard_count() const { return ps * shards; }
  uint32_t worker_hosts() const { return (workers + workers_per_host - 1) / workers_per_host; }
};

/// Times of one machine. cost_file.h reads them from recorded runs. docs/predict.md names the source of each default.
struct Costs {
  double message_us = 3.0;               ///< time of a thread for each message that it sends or receives
  double send_ns_per_byte = 0.16;        ///< time of the sending thread
  double receive_ns_per_byte = 0.16;     ///< time of the receiving thread; overlaps the arrival of the bytes
  double apply_us = 0.1;                 ///< time of one apply
  double apply_ns_per_byte = 0.005;      ///< time of an apply for each fp32 byte of the bucket …
  double gradient_ns_per_byte = 0.0725;  ///< … and for each gradient of the sum
  double pack_ns_per_byte = 0;           ///< time of a worker for each fp32 byte
  double memory_gb_per_s = 200;          ///< memory bandwidth of a ps host, all threads together
  std::vector<std::string> sources;      ///< texts for people
};

/// The work of one step.
struct Load {
  uint64_t bytes = 256 << 20;               ///< fp32 bytes of the model
  std::vector<ExchangeLoad::Layer> layers;  ///< layers of the backward pass; none: all gradients are ready at its end
  uint32_t bucket_bytes = 1 << 20;
  Mode mode{.kind = ModeKind::sync};
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  double compute_ms = 0;     ///< mean of a step
  double compute_sigma = 0;  ///< standard deviation of its logarithm
};

/// Steps of each worker that count, and those before them.
constexpr uint32_t kSteps = 20, kWarmup = 2;
/// The seed of compute times and failures: equal flags give equal results.
constexpr uint64_t kSeed = 1;

/// Failures of hosts, and what the run does about them.
struct Failures {
  double mtbf_hours = 0;    ///< mean time between two failures of a host; 0: no failures
  double detect_s = 4;      ///< time from the failure until the tasks of the host count as lost (--heartbeat-timeout)
  double restart_s = 120;   ///< … from then on until they run again, on this host or another
  double takeover_s = 0.5;  ///< … until the backup of a ps serves
  double save_secs = 600;   ///< time between two saves of a checkpoint
  double save_cost_s = 0;   ///< time by which a save delays the steps
  double run_hours = 168;
  uint32_t runs = 200;  ///< runs of the simulation
};

struct Description {
  Cluster cluster;
  Costs costs;
  Load load;
  Failures failures;
  double workers_each = 1;  ///< workers for which one simulated worker stands (groups.h)
};

/// Errors  INVALID_ARGUMENT names the flag, the value and the range.
absl::Status validate(const Description& description);

}  // namespace gradrail::bench::predict
