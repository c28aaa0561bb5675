#pragma once

#include <array>
#include <string>

#include "tests/topology/plan_random.h"

namespace gradrail::topology {

/// The cost of a plan. Two costs are compared field by field, in this order; less is better.
/// Distance, then bandwidth, then balance of the NICs of towers; the same for shards and their cores; then contiguity.
enum CostField {
  kTowerLastResort,  ///< NICs of towers with a tenth of the best bandwidth or less
  kTowerNoRdma,
  kTowerPath,      ///< path classes, summed
  kTowerSlowness,  ///< Gb/s less than the best
  kTowerInactive,
  kTowerCards,  ///< squares of the towers of each card
  kTowerPorts,  ///< squares of the towers of each NIC
  kShardLastResort,
  kShardNoRdma,
  kShardSlowness,
  kShardInactive,
  kCrossing,        ///< GPU towers that compute on another package than the GPU
  kHelperCrossing,  ///< progress threads of GPU towers on another package than the GPU
  kSiblings,        ///< threads on a core that has a busy thread already
  kGpuAway,         ///< distances of the threads of GPU towers from their GPUs
  kProgressAway,    ///< distances of their progress threads from their computing threads
  kShardAway,       ///< distances of shards from their NICs
  kShardCards,
  kShardPorts,
  kPackages,  ///< of CPU towers: packages besides the first one
  kPools,     ///< likewise NUMA nodes
  kRuns,      ///< gaps between the cores of one tower within a node, where each thread has a core
  kCostFields,
};
using Cost = std::array<int, kCostFields>;

/// The cost of this plan, measured on the plan.
Cost cost_of(const RandomCase& one, const Placement& placement);

/// The least cost of all plans with the same GPUs and the same number of cores for each tower. An exhaustive search for
/// the NICs of towers, where their cores are. Another one for the NICs of shards and the NUMA nodes of all threads.
Cost least_cost(const RandomCase& one, const Placement& placement);

/// "0 0 3 …", with names of the fields that differ.
std::string describe(const Cost& plan, const Cost& least);

}  // namespace gradrail::topology
