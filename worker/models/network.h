#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "gpu/reduce/tower_sum.h"
#include "worker/data/dataset.h"
#include "worker/models/cnn.h"
#include "worker/models/mlp.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// A network for images, wherever it computes: what a workload has beside the data.
/// Threads  One owner.
class Network {
 public:
  virtual ~Network() = default;

  /// The form of batches that step() reads.
  virtual BatchLoader::Form form() const = 0;
  /// Takes the next batch of `loader`; else as Workload::step.
  virtual absl::StatusOr<float> step(BatchLoader& loader, Parameters parameters, Gradients gradients,
                                     const GradientReady& ready) = 0;
  /// Workload::batch_accuracy of this network.
  virtual std::optional<float> batch_accuracy() = 0;
  /// Share of images [n, pixels] with the label as the most likely class, in [0, 1].
  virtual absl::StatusOr<float> accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
                                         Parameters parameters) = 0;
  /// Workload::device_block of this network.
  virtual DeviceBlock device_block() { return {}; }
  virtual void stay_on_device() {}
  virtual void copy_parameters_from(const float* /*parameters*/) {}
  // NOLINTNEXTLINE(performance-unnecessary-value-param): implementations keep the function
  virtual void meanwhile(std::function<void()> /*work*/) {}
  virtual std::string launches() const { return ""; }
  virtual gpu::Compute* device() { return nullptr; }
  virtual void average_by(gpu::TowerSum* /*sum*/, size_t /*tower*/) {}
  virtual void release_memory() {}
};

/// Sizes in the options; `options.data` is required, here and below. INVALID_ARGUMENT: images that are not square, or
/// not of a multiple of 4.
Mlp::Shape mlp_shape(const WorkloadOptions& options);
absl::StatusOr<Cnn::Shape> cnn_shape(const WorkloadOptions& options);

/// Creates an MLP that oneDNN computes on this host.
absl::StatusOr<std::unique_ptr<Network>> make_host_mlp(const WorkloadOptions& options);
absl::StatusOr<std::unique_ptr<Network>> make_host_cnn(const WorkloadOptions& options);

}  // namespace gradrail::worker
