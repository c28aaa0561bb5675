#include "worker/models/workload.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/data/records.h"
#include "worker/models/linear.h"
#include "worker/models/mnist_workload.h"

namespace gradrail::worker {
namespace {

bool reads_mnist(const std::string& model) { return model == "mlp" || model == "cnn"; }

absl::Status check_batch(const WorkloadOptions& options) {
  const size_t count = options.data->train.count;
  if (options.batch_size <= count / options.tower_count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("batch of {}{}, but {} holds only {} training examples", options.batch_size,
                  options.tower_count > 1 ? fmt::format(" for each of {} towers", options.tower_count) : "",
                  options.data_dir.empty() ? "the built-in MNIST" : options.data_dir, count));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MnistData>> load_data(const WorkloadOptions& options) {
  // The linear model generates its points.
  if (!reads_mnist(options.model)) return nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(std::string folder, options.data_dir.empty() ? default_mnist_folder() : options.data_dir);
  GRADRAIL_ASSIGN_OR_RETURN(MnistData data, holds_records(folder) ? load_records(folder) : load_mnist(folder));
  return std::make_shared<const MnistData>(std::move(data));
}

bool computes_on_devices(const std::string& model) { return reads_mnist(model); }

absl::StatusOr<std::unique_ptr<Workload>> make_workload(const WorkloadOptions& options,
                                                        std::unique_ptr<gpu::Compute> device) {
  if (options.batch_size < 1) return absl::InvalidArgumentError("a batch needs at least one example");
  if (options.threads < 1) return absl::InvalidArgumentError("a model needs at least one thread");
  GRADRAIL_CHECK(options.tower < options.tower_count);
  if (device != nullptr && !computes_on_devices(options.model)) {
    return absl::InvalidArgumentError(
        fmt::format("model {} computes on CPUs only, not on {}", options.model, device->name()));
  }
  if (options.model == "linear") {
    // A generator creates its points: each tower has its own, beyond those of all workers.
    return std::make_unique<Linear>(options.batch_size, options.seed, options.task_index + (options.tower << 32));
  }
  if (!reads_mnist(options.model)) {
    return absl::InvalidArgumentError(fmt::format("no model '{}'; there are: mlp, cnn, linear", options.model));
  }
  WorkloadOptions with_data = options;
  // The towers of a process share one copy: only a lone workload loads its own.
  if (with_data.data == nullptr) {
    GRADRAIL_ASSIGN_OR_RETURN(with_data.data, load_data(options));
  }
  GRADRAIL_RETURN_IF_ERROR(check_batch(with_data));
  return make_mnist_workload(with_data, std::move(device));
}

}  // namespace gradrail::worker
