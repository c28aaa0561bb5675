#pragma once

#include <cstdint>

#include "topology/plan.h"

namespace gradrail::topology {

/// A machine nobody built, and what somebody might ask of it. The request is sound, unless it wants more GPUs than
/// there are.
struct RandomCase {
  Machine machine;
  Request request;
};
RandomCase random_case(uint64_t seed);

/// Every line of a placement, for comparing.
std::string dump(const Placement& placement);

}  // namespace gradrail::topology
