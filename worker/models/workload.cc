#include "worker/models/workload.h"

#include <utility>

#include "fmt/format.h"
#include "worker/data/dataset.h"
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
  MlpWorkload(Mlp::Shape shape, std::unique_ptr<Mlp> mlp, MnistData data, const WorkloadOptions& options)
      : schema_(Mlp::schema(shape)),
        mlp_(std::move(mlp)),
        data_(std::move(data)),
        form_(better_form(data_.train, options)),
        loader_(data_.train, options.batch_size, options.seed, options.task_index, form_),
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
    return {fmt::format("Test-Accuracy: {:.2f}", mlp_->accuracy(data_.test.images, data_.test.labels, parameters))};
  }

 private:
  const ps::Schema schema_;
  const std::unique_ptr<Mlp> mlp_;
  const MnistData data_;
  const BatchLoader::Form form_;
  BatchLoader loader_;
  const size_t batch_size_;
};

absl::StatusOr<std::unique_ptr<Workload>> make_mlp(const WorkloadOptions& options) {
  absl::StatusOr<std::string> folder = options.data_dir.empty() ? default_mnist_folder() : options.data_dir;
  if (!folder.ok()) return folder.status();
  absl::StatusOr<MnistData> data = load_mnist(*folder);
  if (!data.ok()) return data.status();
  if (options.batch_size > data->train.count) {
    return absl::InvalidArgumentError(fmt::format("batch of {}, but {} holds only {} training examples",
                                                  options.batch_size, *folder, data->train.count));
  }
  const Mlp::Shape shape{.batch = options.batch_size, .inputs = data->train.pixels};
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, options.threads);
  if (!mlp.ok()) return mlp.status();
  return std::make_unique<MlpWorkload>(shape, *std::move(mlp), *std::move(data), options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> make_workload(const WorkloadOptions& options) {
  if (options.batch_size < 1) return absl::InvalidArgumentError("a batch needs at least one example");
  if (options.threads < 1) return absl::InvalidArgumentError("a model needs at least one thread");
  if (options.model == "mlp") return make_mlp(options);
  if (options.model == "linear") {
    return std::make_unique<Linear>(options.batch_size, options.seed, options.task_index);
  }
  return absl::InvalidArgumentError(fmt::format("no model '{}'; there are: mlp, linear", options.model));
}

}  // namespace gradrail::worker
