#pragma once

#include <cstdint>

#include "topology/plan/plan.h"

namespace gradrail::topology {

/// A random machine and a random request for it. The request is valid, unless it needs more GPUs than there are.
struct RandomCase {
  Machine machine;
  Request request;
};
RandomCase random_case(uint64_t seed);

/// At most 16 cores, four GPUs, four NICs, four towers and two shards: an exhaustive search ends.
RandomCase small_case(uint64_t seed);

/// Every line of a placement, for comparing.
std::string dump(const Placement& placement);

}  // namespace gradrail::topology
