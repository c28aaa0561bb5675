#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gradrail/mode.h"

namespace gradrail::ps {

/// Index of a worker task in the cluster specification.
using WorkerIndex = uint32_t;

/// Whether a run of worker_count workers can have the bound K of this mode.
/// Errors  INVALID_ARGUMENT.
absl::Status check_bound(const Mode& mode);

}  // namespace gradrail::ps
