#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/predict/description.h"
#include "bench/predict/trace.h"

namespace gradrail::bench::predict {

/// The prediction for one description. Statistics are those of `bench exchange`: the median over the workers of their
/// medians, and the worst 99th percentile of a worker.
struct Outcome {
  double step_s_median = 0;
  double step_s_p99 = 0;
  double step_s_mean = 0;
  double step_s_min = 0;
  double step_s_max = 0;
  double exchange_s_median = 0;  ///< time from the end of the computation to the last fresh parameter
  double exchange_s_p99 = 0;
  double steps_per_s = 0;    ///< pace of the median worker
  double updates_per_s = 0;  ///< updates of all buckets, divided by their number
  double dropped_share = 0;  ///< share of the answers to late gradients

  /// Shares of the measured time in which a resource works: of all resources of the kind together. The network: of the
  /// busier direction, in bytes. That of the shards' NICs is the share of line rate.
  double worker_nic = 0, shard_nic = 0, shard_cpu = 0, shard_memory = 0, worker_cpu = 0;
  double compute = 0;  ///< share of a worker's time in which it computes
  /// Shares of the step time along the critical paths (trace.h), in the order of Cause.
  std::array<double, kCauses> critical_path{};
  std::string bottleneck;  ///< the largest of them

  uint64_t buckets = 0;            ///< buckets of the model
  double bytes_into_shard = 0;     ///< bytes of the pushes of one step, at the shard that has the most
  uint32_t simulated_workers = 0;  ///< less than the workers: each stands for several equal ones
  uint64_t events = 0;
};

/// Names of the causes for people, in their order. A shard is its CPU or its memory.
std::array<const char*, kCauses> cause_names(const Outcome& outcome);

/// Runs ps::ShardProtocol for each shard, over workers with the behavior of worker::Exchange. Only times are modeled.
/// Errors  INVALID_ARGUMENT, as validate().
absl::StatusOr<Outcome> simulate(const Description& description);

}  // namespace gradrail::bench::predict
