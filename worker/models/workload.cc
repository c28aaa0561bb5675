#include "worker/models/workload.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/data/records.h"
#include "worker/models/cnn_workload.h"
#include "worker/models/linear.h"

namespace gradrail::worker {
namespace {

// On one core of a Zen 4 a sparse step of 784-100-10 becomes as slow as a dense one at a density of 0.6, together with
// the making of its lists at 0.5. MNIST has 0.19, Fashion-MNIST 0.5.
constexpr double kBreakEvenDensity = 0.5;
// Well below, since only this one CPU was measured.
constexpr double kSparseDensity = 0.35;

/// oneDNN divides its work among the threads, the sparse products do not.
BatchLoader::Form better_form(const Split& train, const WorkloadOptions& options) {
  const double share = density(train.images);
  const bool sparse = fits_sparse(options.batch_size, train.pixels) && share <= kSparseDensity &&
                      share * options.threads <= kBreakEvenDensity;
  return sparse ? BatchLoader::Form::kSparse : BatchLoader::Form::kDense;
}

/// Mlp on MNIST.
class MlpWorkload final : public Workload {
 public:
  MlpWorkload(Mlp::Shape shape, std::unique_ptr<Mlp> mlp, std::shared_ptr<const MnistData> data,
              const WorkloadOptions& options)
      : schema_(Mlp::schema(shape)),
        mlp_(std::move(mlp)),
        data_(std::move(data)),
        form_(better_form(data_->train, options)),
        loader_(data_->train, options.batch_size, options.seed, options.task_index, form_,
                {.index = options.tower, .count = options.tower_count}),
        batch_size_(options.batch_size) {}

  const ps::Schema& schema() const override { return schema_; }
  void initialise(uint64_t seed, Gradients parameters) const override { Mlp::initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return loader_.batches_per_epoch(); }
  size_t batch_size() const override { return batch_size_; }
  void prefetch() override { loader_.prefetch(); }

  float step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    if (form_ == BatchLoader::Form::kSparse) {
      return mlp_->step(loader_.next_sparse(), parameters, gradients, ready);
    }
    const BatchLoader::Batch batch = loader_.next();
    return mlp_->step(batch.images, batch.labels, parameters, gradients, ready);
  }

  std::vector<std::string> verdict(Parameters parameters) override {
    return {fmt::format("Test-Accuracy: {:.2f}", mlp_->accuracy(data_->test.images, data_->test.labels, parameters))};
  }

 private:
  const ps::Schema schema_;
  const std::unique_ptr<Mlp> mlp_;
  const std::shared_ptr<const MnistData> data_;
  const BatchLoader::Form form_;
  BatchLoader loader_;
  const size_t batch_size_;
};

absl::StatusOr<std::unique_ptr<Workload>> make_mlp(const WorkloadOptions& options) {
  const Mlp::Shape shape{.batch = options.batch_size, .inputs = options.data->train.pixels};
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, options.threads);
  if (!mlp.ok()) return mlp.status();
  return std::make_unique<MlpWorkload>(shape, *std::move(mlp), options.data, options);
}

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
  if (!reads_mnist(options.model)) return nullptr;
  absl::StatusOr<std::string> folder = options.data_dir.empty() ? default_mnist_folder() : options.data_dir;
  if (!folder.ok()) return folder.status();
  absl::StatusOr<MnistData> data = holds_records(*folder) ? load_records(*folder) : load_mnist(*folder);
  if (!data.ok()) return data.status();
  return std::make_shared<const MnistData>(*std::move(data));
}

absl::StatusOr<std::unique_ptr<Workload>> make_workload(const WorkloadOptions& options) {
  if (options.batch_size < 1) return absl::InvalidArgumentError("a batch needs at least one example");
  if (options.threads < 1) return absl::InvalidArgumentError("a model needs at least one thread");
  GRADRAIL_CHECK(options.tower < options.tower_count);
  if (options.model == "linear") {
    // Its points come from a generator: each replica has its own, beyond those of all workers.
    return std::make_unique<Linear>(options.batch_size, options.seed, options.task_index + (options.tower << 32));
  }
  if (!reads_mnist(options.model)) {
    return absl::InvalidArgumentError(fmt::format("no model '{}'; there are: mlp, cnn, linear", options.model));
  }
  WorkloadOptions with_data = options;
  if (with_data.data == nullptr) {
    absl::StatusOr<std::shared_ptr<const MnistData>> data = load_data(options);
    if (!data.ok()) return data.status();
    with_data.data = *std::move(data);
  }
  GRADRAIL_RETURN_IF_ERROR(check_batch(with_data));
  return options.model == "mlp" ? make_mlp(with_data) : make_cnn(with_data);
}

}  // namespace gradrail::worker
