#pragma once

#include "bench/predict/description.h"

namespace gradrail::bench::predict {

/// Simulated workers of a large cluster: the length of the queue at a shard has steps of 1/256 then.
constexpr uint32_t kSimulatedWorkers = 256;

/// A cluster with fewer workers, each of which stands for several equal ones. The servers do the work of all of them: a
/// message takes so many times longer at the NIC, the thread and the memory of a server. Times of workers stay.
/// Equal workers have the same compute time, so that they differ by their order only.
/// Returns `description` with `workers_each` 1 for few workers, and if workers differ or cannot be divided: a spread of
/// compute times, or a count of spared workers that is no multiple.
Description with_groups(const Description& description);

}  // namespace gradrail::bench::predict
