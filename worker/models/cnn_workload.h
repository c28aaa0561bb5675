#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// Cnn on MNIST; `options.data` is there. INVALID_ARGUMENT: images that are not square, or not of a multiple of 4.
absl::StatusOr<std::unique_ptr<Workload>> make_cnn(const WorkloadOptions& options);

}  // namespace gradrail::worker
