#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"
#include "gpu/reduce/tower_sum.h"
#include "gradrail/client_options.h"
#include "gradrail/mode.h"
#include "worker/models/mlp.h"

namespace gradrail::worker {

struct MnistData;

/// The test of a finished model.
struct Verdict {
  std::vector<std::string> lines;  ///< format of the tutorials: "Test-Accuracy: 0.65" or "w = 2.0000, b = 10.0000"
  std::optional<float> accuracy;   ///< share of the test images, in [0, 1]; none: the model has no classes
};

/// A model together with its data: the interface of both for the trainer.
/// Threads  One owner.
class Workload {
 public:
  virtual ~Workload() = default;

  virtual const Schema& schema() const = 0;
  virtual void initialise(uint64_t seed, Gradients parameters) const = 0;
  virtual size_t batches_per_epoch() const = 0;
  virtual size_t batch_size() const = 0;

  /// The next batch is that of this step, counted from 0 over all epochs: without a call, the one after the last.
  virtual void seek(uint64_t step) = 0;
  /// Prepares the next batch; called while an exchange is under way.
  virtual void prefetch() = 0;
  /// Runs one forward and backward pass over the next batch; returns its mean cost.
  /// Errors  UNAVAILABLE: its device was lost, some tensors may have been called ready. INTERNAL: it failed otherwise.
  virtual absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) = 0;

  /// Share of the last step's batch that had the label as the most likely class, before the update. None: the model has
  /// no classes, or its device has failed. A device copies memory for it, so that it is not for each step.
  virtual std::optional<float> batch_accuracy() { return std::nullopt; }

  /// Errors  Those of step().
  virtual absl::StatusOr<Verdict> verdict(Parameters parameters) = 0;

  /// Block with the parameters and the gradient on one device, without its ordinal; the gradient of several towers if
  /// these average between devices. Empty: they are not on one device.
  virtual DeviceBlock device_block() { return {}; }
  /// Makes step() read parameters, and leave gradients, on the device from the next step on: its arguments stay
  /// untouched.
  virtual void stay_on_device() {}
  /// Makes each step from the next one on copy parameters first from there, another device's memory in this process.
  /// The call is for a tower that stays on its device.
  virtual void copy_parameters_from(const float* /*parameters*/) {}
  /// Called again and again while a step waits for its device; null: nothing more.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
  virtual void meanwhile(std::function<void()> /*work*/) {}
  /// Describes how the device gets the operations of a step, after the first one: "recorded, 1 launch", or "one by one"
  /// with the reason. "": this host computes.
  virtual std::string launches() const { return ""; }
  /// The device that computes; null: this host.
  virtual gpu::Compute* device() { return nullptr; }
  /// Makes gradients the means of all towers from the next step on; this is tower number `tower`. Only the first brings
  /// them to the host and calls `ready`. The call is for a workload with a device; null: no more.
  virtual void average_by(gpu::TowerSum* /*sum*/, size_t /*tower*/) {}
  /// Releases the memory that steps and verdicts were given, before it is freed: a device unpins it.
  virtual void release_memory() {}
};

struct WorkloadOptions {
  std::string model = "mlp";  ///< mlp, cnn, linear
  size_t batch_size = 100;
  std::string data_dir;  ///< "": the built-in MNIST
  uint64_t seed = 1;
  uint64_t task_index = 0;  ///< each worker has its own order of the data
  int threads = 1;
  bool cnn_logits_relu = true;         ///< Cnn::Shape::logits_relu
  size_t tower = 0;                    ///< index in the worker: the towers take batches in turn, so that those of
  size_t tower_count = 1;              ///< one step are together one batch of `tower_count` times the size
  PushFormat push = PushFormat::fp32;  ///< a device keeps room for gradients in this format
  /// Shared by the towers of one process, which only read it; null: read from data_dir.
  std::shared_ptr<const MnistData> data;
};

/// Loads the data of `data_dir`; null for a model that needs no files. Errors  Those of load_mnist.
absl::StatusOr<std::shared_ptr<const MnistData>> load_data(const WorkloadOptions& options);

/// Whether gpu::Compute has code for a model.
bool computes_on_devices(const std::string& model);

/// `device`: what the model computes with; null: this host, by oneDNN.
/// Errors  INVALID_ARGUMENT: no such model (lists them), or no code of the model for devices. Also images of another
///         size, and batches of all towers that are larger than the training set. RESOURCE_EXHAUSTED: the device has
///         too little memory. Otherwise those of load_data.
absl::StatusOr<std::unique_ptr<Workload>> make_workload(const WorkloadOptions& options,
                                                        std::unique_ptr<gpu::Compute> device = nullptr);

}  // namespace gradrail::worker
