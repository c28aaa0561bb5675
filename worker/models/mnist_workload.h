#pragma once

#include <memory>

#include "gpu/compute/compute.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// Mlp or Cnn on MNIST, whichever `options.model` names; `options.data` is there. With a `device` the network computes
/// there, else by oneDNN.
/// Errors  INVALID_ARGUMENT: images that the model does not take. Otherwise those of DeviceNetwork::create.
absl::StatusOr<std::unique_ptr<Workload>> make_mnist_workload(const WorkloadOptions& options,
                                                              std::unique_ptr<gpu::Compute> device);

}  // namespace gradrail::worker
