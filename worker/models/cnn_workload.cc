#include "worker/models/cnn_workload.h"

#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/models/cnn.h"

namespace gradrail::worker {
namespace {

class CnnWorkload final : public Workload {
 public:
  CnnWorkload(Cnn::Shape shape, std::unique_ptr<Cnn> cnn, const WorkloadOptions& options)
      : schema_(Cnn::schema(shape)),
        cnn_(std::move(cnn)),
        data_(options.data),
        loader_(data_->train, options.batch_size, options.seed, options.task_index, BatchLoader::Form::kCentred,
                {.index = options.tower, .count = options.tower_count}),
        batch_size_(options.batch_size) {}

  const ps::Schema& schema() const override { return schema_; }
  void initialise(uint64_t seed, Gradients parameters) const override { Cnn::initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return loader_.batches_per_epoch(); }
  size_t batch_size() const override { return batch_size_; }
  void prefetch() override { loader_.prefetch(); }

  float step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    const BatchLoader::Batch batch = loader_.next();
    return cnn_->step(batch.images, batch.labels, parameters, gradients, ready);
  }

  std::vector<std::string> verdict(Parameters parameters) override {
    // Four places: all that matters of this model is beyond the second.
    return {fmt::format("Test-Accuracy: {:.4f}", cnn_->accuracy(data_->test.images, data_->test.labels, parameters))};
  }

 private:
  const ps::Schema schema_;
  const std::unique_ptr<Cnn> cnn_;
  const std::shared_ptr<const MnistData> data_;
  BatchLoader loader_;
  const size_t batch_size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> make_cnn(const WorkloadOptions& options) {
  const size_t pixels = options.data->train.pixels;
  const auto side = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  if (side * side != pixels || side % 4 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model cnn takes square images whose side is a multiple of 4, as MNIST's 28x28; these have {} pixels", pixels));
  }
  const Cnn::Shape shape{.batch = options.batch_size, .side = side, .logits_relu = options.cnn_logits_relu};
  absl::StatusOr<std::unique_ptr<Cnn>> cnn = Cnn::create(shape, options.threads);
  if (!cnn.ok()) return cnn.status();
  return std::make_unique<CnnWorkload>(shape, *std::move(cnn), options);
}

}  // namespace gradrail::worker
