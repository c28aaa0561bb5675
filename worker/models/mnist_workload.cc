#include "worker/models/mnist_workload.h"

#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/models/device_network.h"
#include "worker/models/network.h"

namespace gradrail::worker {
namespace {

/// The part of a model that is the same on every device.
struct Model {
  Schema schema;
  void (*initialise)(uint64_t seed, Gradients parameters) = nullptr;
  int accuracy_places = 2;
};

class MnistWorkload final : public Workload {
 public:
  MnistWorkload(Model model, std::unique_ptr<Network> network, const WorkloadOptions& options)
      : model_(std::move(model)),
        data_(options.data),
        loader_(data_->train, options.batch_size, options.seed, options.task_index, network->form(),
                {.index = options.tower, .count = options.tower_count}),
        batch_size_(options.batch_size),
        network_(std::move(network)) {}

  const Schema& schema() const override { return model_.schema; }
  void initialise(uint64_t seed, Gradients parameters) const override { model_.initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return loader_.batches_per_epoch(); }
  size_t batch_size() const override { return batch_size_; }
  void seek(uint64_t step) override { loader_.seek(step); }
  void prefetch() override { loader_.prefetch(); }

  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    return network_->step(loader_, parameters, gradients, ready);
  }

  std::optional<float> batch_accuracy() override { return network_->batch_accuracy(); }

  absl::StatusOr<Verdict> verdict(Parameters parameters) override {
    GRADRAIL_ASSIGN_OR_RETURN(const float share,
                              network_->accuracy(data_->test.images, data_->test.labels, parameters));
    return Verdict{.lines = {fmt::format("Test-Accuracy: {:.{}f}", share, model_.accuracy_places)}, .accuracy = share};
  }

  DeviceBlock device_block() override { return network_->device_block(); }
  void stay_on_device() override { network_->stay_on_device(); }
  void copy_parameters_from(const float* parameters) override { network_->copy_parameters_from(parameters); }
  void meanwhile(std::function<void()> work) override { network_->meanwhile(std::move(work)); }
  gpu::Compute* device() override { return network_->device(); }
  std::string launches() const override { return network_->launches(); }
  void average_by(gpu::TowerSum* sum, size_t tower) override { network_->average_by(sum, tower); }
  void release_memory() override { network_->release_memory(); }

 private:
  const Model model_;
  const std::shared_ptr<const MnistData> data_;
  BatchLoader loader_;
  const size_t batch_size_;
  const std::unique_ptr<Network> network_;  // last: a device may still read the loader's memory until it ends
};

absl::StatusOr<Model> model_of(const WorkloadOptions& options) {
  if (options.model == "mlp") return Model{Mlp::schema(mlp_shape(options)), &Mlp::initialise};
  GRADRAIL_ASSIGN_OR_RETURN(const Cnn::Shape shape, cnn_shape(options));
  // Four places: all that matters of this model is beyond the second.
  return Model{Cnn::schema(shape), &Cnn::initialise, 4};
}

absl::StatusOr<std::unique_ptr<Network>> network_of(const WorkloadOptions& options,
                                                    std::unique_ptr<gpu::Compute> device) {
  if (device != nullptr) return make_device_network(options, std::move(device));
  return options.model == "mlp" ? make_host_mlp(options) : make_host_cnn(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> make_mnist_workload(const WorkloadOptions& options,
                                                              std::unique_ptr<gpu::Compute> device) {
  // First the model: images that it does not take are an error before a device allocates memory.
  GRADRAIL_ASSIGN_OR_RETURN(Model model, model_of(options));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Network> network, network_of(options, std::move(device)));
  return std::make_unique<MnistWorkload>(std::move(model), std::move(network), options);
}

}  // namespace gradrail::worker
