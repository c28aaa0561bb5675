#include <cmath>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "worker/models/network.h"
#include "worker/models/workload.h"

namespace gradrail::worker {
namespace {

// A sparse step of 784-100-10 on one core of a Zen 4 becomes as slow as a dense one at a density of 0.6. The
// construction of its lists lowers this to 0.5. MNIST has 0.19, Fashion-MNIST 0.5.
constexpr double kBreakEvenDensity = 0.5;
// Well below, since only this one CPU was measured.
constexpr double kSparseDensity = 0.35;

/// oneDNN divides its work among the threads, the sparse products do not.
BatchLoader::Form better_form(const Split& train, const WorkloadOptions& options) {
  // The sparse products use one thread; the dense ones gain from each, so the bound decreases with the number of
  // threads.
  const double share = density(train.images);
  const bool sparse = fits_sparse(options.batch_size, train.pixels) && share <= kSparseDensity &&
                      share * options.threads <= kBreakEvenDensity;
  return sparse ? BatchLoader::Form::kSparse : BatchLoader::Form::kDense;
}

class HostMlp final : public Network {
 public:
  HostMlp(std::unique_ptr<Mlp> mlp, BatchLoader::Form form) : mlp_(std::move(mlp)), form_(form) {}

  BatchLoader::Form form() const override { return form_; }

  absl::StatusOr<float> step(BatchLoader& loader, Parameters parameters, Gradients gradients,
                             const GradientReady& ready) override {
    if (form_ == BatchLoader::Form::kSparse) {
      return mlp_->step(loader.next_sparse(), parameters, gradients, ready);
    }
    const BatchLoader::Batch batch = loader.next();
    return mlp_->step(batch.images, batch.labels, parameters, gradients, ready);
  }
  std::optional<float> batch_accuracy() override { return mlp_->batch_accuracy(); }

  absl::StatusOr<float> accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
                                 Parameters parameters) override {
    return mlp_->accuracy(images, labels, parameters);
  }

 private:
  const std::unique_ptr<Mlp> mlp_;
  const BatchLoader::Form form_;
};

class HostCnn final : public Network {
 public:
  explicit HostCnn(std::unique_ptr<Cnn> cnn) : cnn_(std::move(cnn)) {}

  BatchLoader::Form form() const override { return BatchLoader::Form::kCentred; }

  absl::StatusOr<float> step(BatchLoader& loader, Parameters parameters, Gradients gradients,
                             const GradientReady& ready) override {
    const BatchLoader::Batch batch = loader.next();
    return cnn_->step(batch.images, batch.labels, parameters, gradients, ready);
  }
  std::optional<float> batch_accuracy() override { return cnn_->batch_accuracy(); }

  absl::StatusOr<float> accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
                                 Parameters parameters) override {
    return cnn_->accuracy(images, labels, parameters);
  }

 private:
  const std::unique_ptr<Cnn> cnn_;
};

}  // namespace

Mlp::Shape mlp_shape(const WorkloadOptions& options) {
  return {.batch = options.batch_size, .inputs = options.data->train.pixels};
}

absl::StatusOr<Cnn::Shape> cnn_shape(const WorkloadOptions& options) {
  const size_t pixels = options.data->train.pixels;
  const ImageSize& size = options.data->train.size;
  // The number of pixels alone could be that of a square: 14 x 56 x 1, or 16 x 16 x 4.
  if (size != ImageSize() && (size.height != size.width || size.depth != 1)) {
    return absl::InvalidArgumentError(
        fmt::format("model cnn requires square images with one channel; these have {} x {} pixels and {} channels",
                    size.height, size.width, size.depth));
  }
  const auto side = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  if (side * side != pixels || side % 4 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model cnn requires square images with a side divisible by 4, as MNIST's 28x28; these have {} pixels", pixels));
  }
  return Cnn::Shape{.batch = options.batch_size, .side = side, .logits_relu = options.cnn_logits_relu};
}

absl::StatusOr<std::unique_ptr<Network>> make_host_mlp(const WorkloadOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Mlp> mlp, Mlp::create(mlp_shape(options), options.threads));
  return std::make_unique<HostMlp>(std::move(mlp), better_form(options.data->train, options));
}

absl::StatusOr<std::unique_ptr<Network>> make_host_cnn(const WorkloadOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const Cnn::Shape shape, cnn_shape(options));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Cnn> cnn, Cnn::create(shape, options.threads));
  return std::make_unique<HostCnn>(std::move(cnn));
}

}  // namespace gradrail::worker
