#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/suites/exchange_run.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::bench::predict {

/// The hosts and their network. Workers and ps processes run on different hosts.
struct Cluster {
  uint32_t workers = 4;
  uint32_t ps = 1;
  uint32_t shards = 1;  ///< of each ps process
  uint32_t workers_per_host = 1;
  uint32_t ps_per_host = 1;
  uint32_t rails = 1;           ///< NICs of each host
  double nic_gbit = 100;        ///< line rate of a NIC in each direction
  double ps_nic_gbit = 0;       ///< the same for hosts of ps processes; 0: as nic_gbit
  double rtt_us = 10;           ///< between two hosts without load
  double oversubscription = 1;  ///< of the links between leaf and spine switches; 1: no such limit
  uint32_t hosts_per_leaf = 32;
  double loss = 0;             ///< share of packets
  uint32_t mtu = 1500;         ///< bytes of an IP packet
  double packets_per_ack = 2;  ///< that a receiver of TCP acknowledges together
  double unfairness = 0;       ///< sigma of the logarithm of a connection's weight, when connections share a link
  uint32_t queue_kib = 0;      ///< the queue of a port, which TCP fills; 0: acknowledgments do not wait behind data
  uint32_t frame_bytes = 38;   ///< around an IP packet. Ethernet: preamble, header, checksum, gap

  uint32_t shard_count() const { return ps * shards; }
  uint32_t worker_hosts() const { return (workers + workers_per_host - 1) / workers_per_host; }
  uint32_t ps_hosts() const { return (ps + ps_per_host - 1) / ps_per_host; }
};

/// Times of one machine. cost_file.h reads them from recorded runs. docs/predict.md names the source of each default.
struct Costs {
  double message_us = 3.0;               ///< of a thread for each message that it sends or receives
  double send_ns_per_byte = 0.16;        ///< of the sending thread
  double receive_ns_per_byte = 0.16;     ///< of the receiving thread; overlaps the arrival of the bytes
  double wake_us = 0;                    ///< of a thread that has no work when a message arrives
  double apply_us = 0.1;                 ///< of one apply
  double apply_ns_per_byte = 0.005;      ///< by fp32 bytes of the bucket …
  double gradient_ns_per_byte = 0.0725;  ///< … and for each gradient of the sum
  double pack_ns_per_byte = 0;           ///< of a worker, by fp32 bytes
  double memory_gb_per_s = 200;          ///< of a ps host, all threads together
  std::vector<std::string> sources;      ///< for people
};

/// The work of one step.
struct Load {
  uint64_t bytes = 256 << 20;               ///< fp32 bytes of the model
  std::vector<ExchangeLoad::Layer> layers;  ///< of the backward pass; none: all gradients are ready at its end
  uint32_t bucket_bytes = 1 << 20;
  uint64_t slot_bytes = 32 << 20;
  Mode mode{.kind = ModeKind::sync};
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  double compute_ms = 0;     ///< mean of a step
  double compute_sigma = 0;  ///< of its logarithm
  uint32_t slow_workers = 0;
  double slowdown = 2;  ///< of the compute time of those workers
  uint32_t steps = 20;  ///< measured, of each worker
  uint32_t warmup = 2;
  uint64_t seed = 1;
};

/// Failures of hosts, and what the run does about them.
struct Failures {
  double mtbf_hours = 0;    ///< of each host; 0: no failures
  double detect_s = 4;      ///< from the failure until the tasks of the host count as lost (--heartbeat-timeout)
  double restart_s = 120;   ///< … from then on until they run again, on this host or another
  double takeover_s = 0.5;  ///< … until the backup of a ps serves
  double save_secs = 600;   ///< between two saves of a checkpoint; 0: none
  double save_cost_s = 0;   ///< for which a save delays the steps
  double run_hours = 168;
  uint32_t runs = 200;  ///< of the simulation
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
