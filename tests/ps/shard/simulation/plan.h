#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ps/shard/shard_protocol.h"

namespace gradrail::ps::simulation {

/// The choices of a seed: the cluster and its faults.
struct Plan {
  uint64_t seed = 0;
  Mode mode;
  uint32_t worker_count = 1;
  std::vector<uint32_t> bucket_counts;  ///< per shard
  uint64_t step_count = 1;              ///< of each worker (async, ssp), of the run (sync, backup)
  bool initialised = false;             ///< restored from a checkpoint
  uint64_t initial_version = 0;
  bool opens_with_pull = true;  ///< else workers other than the chief push without having seen parameters
  bool jumps_ahead = false;     ///< sync, backup: a worker that is behind continues at the received version + 1

  uint64_t delay_max = 1;       ///< of one message, in ticks
  uint64_t window_max = 1;      ///< of one grace window, in ticks
  double duplicate_rate = 0.0;  ///< of messages
  uint64_t fault_horizon = 1;   ///< faults begin before this time
  uint32_t link_losses = 0;
  uint32_t restarts = 0;
  uint32_t kills = 0;  ///< for good, noticed late
  uint32_t early_leaves = 0;
  uint32_t false_removals = 0;  ///< declared lost; returns as the same incarnation
  uint32_t forgeries = 0;       ///< pushes with a gap
  uint32_t ghosts = 0;          ///< pushes of incarnations that were replaced

  uint64_t last_step() const { return mode.sums() ? initial_version + step_count : step_count; }
};

Plan plan_of(uint64_t seed);
std::string describe(const Plan& plan);

}  // namespace gradrail::ps::simulation
